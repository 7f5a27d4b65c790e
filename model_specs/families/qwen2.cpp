// qwen2 and qwen2.5 (Qwen2Config): llama with biases on q, k and v, whatever the configuration says.
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{};

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 151936;
  spec.hidden_size = 4096;
  spec.intermediate_size = 22016;
  spec.num_hidden_layers = 32;
  spec.num_attention_heads = 32;
  spec.num_key_value_heads = 32;
  spec.max_position_embeddings = 32768;
  read_decoder_sizes(config, spec);
  spec.head_dim = read_head_dim(config, spec);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.attention_bias = true;
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_act", Activation::silu);
  spec.rope = read_rope(config, 10000.0);
  read_optional_windows(config, spec);
}

}  // namespace

Family qwen2_family() { return decoder_family<kStyle>("qwen2", {"Qwen2ForCausalLM", "Qwen2Model"}, parse); }

}  // namespace vramfit
