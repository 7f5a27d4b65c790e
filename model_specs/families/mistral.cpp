// mistral (MistralConfig): llama with a window on every layer and no biases.
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{};

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 32000;
  spec.hidden_size = 4096;
  spec.intermediate_size = 14336;
  spec.num_hidden_layers = 32;
  spec.num_attention_heads = 32;
  spec.num_key_value_heads = 8;
  spec.max_position_embeddings = 131072;
  read_decoder_sizes(config, spec);
  spec.head_dim = read_head_dim(config, spec);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_act", Activation::silu);
  spec.rope = read_rope(config, 10000.0);
  read_window_everywhere(config, spec, 4096);
}

}  // namespace

Family mistral_family() { return decoder_family<kStyle>("mistral", {"MistralForCausalLM", "MistralModel"}, parse); }

}  // namespace vramfit
