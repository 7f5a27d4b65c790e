// granite (GraniteConfig): llama with four multipliers: of the embedding, of each branch before it is added to the
// residual, of attention's scores (instead of 1 / sqrt(head_dim)), and a divisor of the logits.
#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{};
constexpr double kLeastDivisor = 1e-6;

void parse(ConfigReader& config, ModelSpec& spec) {
  read_llama_config(config, spec);
  spec.attention_scale = config.number("attention_multiplier", 1);
  spec.embedding_multiplier = config.number("embedding_multiplier", 1);
  spec.residual_multiplier = config.number("residual_multiplier", 1);
  spec.logits_scaling = config.number("logits_scaling", 1, kLeastDivisor);
}

}  // namespace

Family granite_family() { return decoder_family<kStyle>("granite", {"GraniteForCausalLM", "GraniteModel"}, parse); }

}  // namespace vramfit
