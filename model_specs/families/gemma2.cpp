// gemma2 (Gemma2Config): gemma with four norms a block, capped scores and logits, and a window on every other layer.
#include <cmath>

#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{.weight_plus_one = true, .four_norms = true, .scaled_embedding = true};

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 256000;
  spec.hidden_size = 2304;
  spec.intermediate_size = 9216;
  spec.num_hidden_layers = 26;
  spec.num_attention_heads = 8;
  spec.num_key_value_heads = 4;
  spec.max_position_embeddings = 8192;
  read_decoder_sizes(config, spec);
  spec.head_dim = config.optional_size("head_dim").value_or(256);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_activation", Activation::gelu_tanh);
  spec.attention_scale = 1.0 / std::sqrt(config.number("query_pre_attn_scalar", 256, 1e-6));
  spec.attention_softcap = config.is_null("attn_logit_softcapping") ? 0 : config.number("attn_logit_softcapping", 50.0);
  spec.final_logit_softcap =
      config.is_null("final_logit_softcapping") ? 0 : config.number("final_logit_softcapping", 30.0);
  spec.rope = read_rope(config, 10000.0);
  read_alternating_windows(config, spec, 2);
  refuse_bidirectional(config, spec);
}

}  // namespace

Family gemma2_family() {
  return decoder_family<kStyle>("gemma2", {"Gemma2ForCausalLM", "Gemma2Model"}, parse, scaled_decoder_buffers);
}

}  // namespace vramfit
