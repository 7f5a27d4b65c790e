// granite (GraniteConfig): llama with four multipliers: of the embedding, of each branch before it is added to the
// residual, of attention's scores (instead of 1 / sqrt(head_dim)), and a divisor of the logits.
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{};
constexpr double kLeastDivisor = 1e-6;

void parse(ConfigReader& config, ModelSpec& spec) {
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
  spec.attention_scale = config.number("attention_multiplier", 1);
  spec.embedding_multiplier = config.number("embedding_multiplier", 1);
  spec.residual_multiplier = config.number("residual_multiplier", 1);
  spec.logits_scaling = config.number("logits_scaling", 1, kLeastDivisor);
}

}  // namespace

Family granite_family() { return decoder_family<kStyle>("granite", {"GraniteForCausalLM", "GraniteModel"}, parse); }

}  // namespace vramfit
