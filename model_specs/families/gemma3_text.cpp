// gemma3's language model (Gemma3TextConfig): gemma2 with norms on q and k instead of capped scores, five sliding
// layers to one full, and rotary frequencies of their own for the sliding ones.
#include <algorithm>
#include <cmath>

#include "model_specs/families/decoder.h"

namespace vramfit {
namespace {

constexpr DecoderStyle kStyle{
    .qk_norm = true, .weight_plus_one = true, .four_norms = true, .scaled_embedding = true, .local_rope = true};

Rope read_local_rope(ConfigReader& config) {
  Rope rope;
  rope.theta = config.number("rope_local_base_freq", 10000.0, 1e-3);
  std::optional<ConfigReader> all = config.object("rope_parameters");
  std::optional<ConfigReader> entry = all ? all->object("sliding_attention") : std::nullopt;
  return entry ? read_rope_entry(*entry, rope) : rope;
}

std::vector<NamedBuffer> gemma3_buffers(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "" : "model.";
  std::vector<NamedBuffer> list{{prefix + "embed_tokens.embed_scale", {}, Dtype::f32, false}};
  for (const AttentionSpan span : {AttentionSpan::full, AttentionSpan::sliding}) {
    if (std::ranges::find(spec.layer_spans, span) == spec.layer_spans.end()) continue;
    const char* name = span == AttentionSpan::full ? "full_attention" : "sliding_attention";
    for (const char* kind : {"_inv_freq", "_original_inv_freq"}) {
      list.push_back({prefix + "rotary_emb." + name + kind, {ceil_div(spec.head_dim, 2)}, Dtype::f32, false});
    }
  }
  return list;
}

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 262208;
  spec.hidden_size = 2304;
  spec.intermediate_size = 9216;
  spec.num_hidden_layers = 26;
  spec.num_attention_heads = 8;
  spec.num_key_value_heads = 4;
  spec.max_position_embeddings = 131072;
  read_decoder_sizes(config, spec);
  spec.head_dim = config.optional_size("head_dim").value_or(256);
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", false);
  spec.norm_eps = config.number("rms_norm_eps", 1e-6);
  spec.activation = config.activation("hidden_activation", Activation::gelu_tanh);
  spec.attention_scale = 1.0 / std::sqrt(config.number("query_pre_attn_scalar", 256, 1e-6));
  spec.attention_softcap = config.optional_number("attn_logit_softcapping").value_or(0);
  spec.final_logit_softcap = config.optional_number("final_logit_softcapping").value_or(0);
  spec.rope = read_rope(config, 1e6);
  spec.local_rope = read_local_rope(config);
  read_alternating_windows(config, spec, config.count("sliding_window_pattern", 6));
  refuse_bidirectional(config, spec);
}

}  // namespace

Family gemma3_text_family() {
  return decoder_family<kStyle>("gemma3_text", {"Gemma3ForCausalLM", "Gemma3TextModel"}, parse, gemma3_buffers);
}

}  // namespace vramfit
