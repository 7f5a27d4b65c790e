// qwen3 (Qwen3Config): llama with a norm on each head of q and k.
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{.qk_norm = true};

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 151936;
  spec.hidden_size = 4096;
  spec.intermediate_size = 22016;
  spec.num_hidden_layers = 32;
  spec.num_attention_heads = 32;
  spec.num_key_value_heads = 32;
  spec.max_position_embeddings = 32768;
  read_decoder_sizes(config, spec);
  spec.head_dim = config.optional_size("head_dim").value_or(128);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_act", Activation::silu);
  spec.rope = read_rope(config, 10000.0);
  read_optional_windows(config, spec);
}

}  // namespace

Family qwen3_family() { return decoder_family<kStyle>("qwen3", {"Qwen3ForCausalLM", "Qwen3Model"}, parse); }

}  // namespace vramfit
