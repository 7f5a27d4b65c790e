// gemma (GemmaConfig): tied, scaled embedding; norms multiply by 1 + weight.
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{.weight_plus_one = true, .scaled_embedding = true};

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 256000;
  spec.hidden_size = 3072;
  spec.intermediate_size = 24576;
  spec.num_hidden_layers = 28;
  spec.num_attention_heads = 16;
  spec.num_key_value_heads = 16;
  spec.max_position_embeddings = 8192;
  read_decoder_sizes(config, spec);
  spec.head_dim = config.optional_size("head_dim").value_or(256);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  // The first releases say "gelu" but mean the tanh form, and transformers treats them so.
  spec.activation = config.activation("hidden_act", Activation::gelu_tanh);
  if (spec.activation == Activation::gelu_erf) spec.activation = Activation::gelu_tanh;
  spec.rope = read_rope(config, 10000.0);
  refuse_bidirectional(config, spec);
}

}  // namespace

Family gemma_family() {
  return decoder_family<kStyle>("gemma", {"GemmaForCausalLM", "GemmaModel"}, parse, scaled_decoder_buffers);
}

}  // namespace vramfit
