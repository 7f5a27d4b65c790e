// gpt_neox (GPTNeoXConfig): layer norms, one matrix for q, k and v, rotary positions on part of a head. Counted only.
#include <fmt/format.h>

#include "model_specs/families/decoder.h"
#include "model_specs/families/families.h"

namespace vramfit {
namespace {

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 50432;
  spec.hidden_size = 6144;
  spec.intermediate_size = 24576;
  spec.num_hidden_layers = 44;
  spec.num_attention_heads = 64;
  spec.max_position_embeddings = 2048;
  read_decoder_sizes(config, spec);
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.fail("num_attention_heads",
                fmt::format("{} doesn't divide hidden_size, {}", spec.num_attention_heads, spec.hidden_size));
  }
  spec.num_key_value_heads = spec.num_attention_heads;
  spec.head_dim = spec.hidden_size / spec.num_attention_heads;
  spec.gated_mlp = false;
  spec.mlp_bias = true;
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  spec.attention_bias = spec.attention_out_bias = config.boolean("attention_bias", true);
  spec.norm_eps = config.number("layer_norm_eps", 1e-5);
  spec.activation = config.activation("hidden_act", Activation::gelu_erf);
  spec.dropout = config.number("hidden_dropout", 0, 0, 1);
  spec.rope = read_rope(config, config.number("rotary_emb_base", 10000.0, 1e-3));
  std::optional<ConfigReader> rope = config.object("rope_parameters");
  const bool given = rope && rope->has("partial_rotary_factor");
  if (!given) spec.rope.partial_factor = config.number("rotary_pct", 0.25, 1e-6, 1.0);
}

std::vector<NamedShape> neox_parameters(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "" : "gpt_neox.";
  const std::int64_t hidden = spec.hidden_size;
  ShapeList list;
  list.add(prefix + "embed_in.weight", {spec.vocab_size, hidden});
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}.", prefix, i);
    list.layer_norm(layer + "input_layernorm", hidden);
    list.layer_norm(layer + "post_attention_layernorm", hidden);
    list.linear(layer + "attention.query_key_value", 3 * hidden, hidden, spec.attention_bias);
    list.linear(layer + "attention.dense", hidden, hidden, spec.attention_out_bias);
    list.linear(layer + "mlp.dense_h_to_4h", spec.intermediate_size, hidden, true);
    list.linear(layer + "mlp.dense_4h_to_h", hidden, spec.intermediate_size, true);
  }
  list.layer_norm(prefix + "final_layer_norm", hidden);
  if (!is_headless(spec) && !spec.tie_word_embeddings) list.add("lm_head.weight", {spec.vocab_size, hidden});
  return list.take();
}

std::vector<NamedBuffer> neox_buffers(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "" : "gpt_neox.";
  const auto dims = static_cast<std::int64_t>(static_cast<double>(spec.head_dim) * spec.rope.partial_factor);
  return {{prefix + "rotary_emb.inv_freq", {ceil_div(dims, 2)}, Dtype::f32, false},
          {prefix + "rotary_emb.original_inv_freq", {ceil_div(dims, 2)}, Dtype::f32, false}};
}

}  // namespace

Family gpt_neox_family() {
  return {.model_type = "gpt_neox",
          .classes = {"GPTNeoXForCausalLM", "GPTNeoXModel"},
          .parse = parse,
          .parameters = neox_parameters,
          .buffers = neox_buffers,
          .graph = nullptr};
}

}  // namespace vramfit
