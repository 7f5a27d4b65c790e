// llama 1 to 3.3 (LlamaConfig, LlamaForCausalLM).
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{};

}  // namespace

void read_llama_config(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 32000;
  spec.hidden_size = 4096;
  spec.intermediate_size = 11008;
  spec.num_hidden_layers = 32;
  spec.num_attention_heads = 32;
  spec.max_position_embeddings = 2048;
  read_decoder_sizes(config, spec);
  spec.head_dim = read_head_dim(config, spec);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", false);
  spec.mlp_bias = config.boolean("mlp_bias", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_act", Activation::silu);
  spec.rope = read_rope(config, 10000.0);
}

Family llama_family() { return decoder_family<kStyle>("llama", {"LlamaForCausalLM", "LlamaModel"}, read_llama_config); }

}  // namespace vramfit
