// opt (OPTConfig): learned positions with two rows to spare, layer norms, an embedding that may be narrower than the
// blocks. Counted only.
#include <fmt/format.h>

#include "model_specs/families/decoder.h"
#include "model_specs/families/families.h"

namespace vramfit {
namespace {

constexpr std::int64_t kPositionOffset = 2;

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = config.size("vocab_size", 50272);
  spec.hidden_size = config.size("hidden_size", 768);
  spec.intermediate_size = config.size("ffn_dim", 3072);
  spec.num_hidden_layers = config.layers("num_hidden_layers", 12);
  spec.num_attention_heads = config.size("num_attention_heads", 12);
  spec.max_position_embeddings = config.size("max_position_embeddings", 2048);
  spec.has_position_table = true;
  spec.word_embed_proj_dim = config.optional_size("word_embed_proj_dim").value_or(spec.hidden_size);
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.fail("num_attention_heads",
                fmt::format("{} doesn't divide hidden_size, {}", spec.num_attention_heads, spec.hidden_size));
  }
  spec.num_key_value_heads = spec.num_attention_heads;
  spec.head_dim = spec.hidden_size / spec.num_attention_heads;
  spec.gated_mlp = false;
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  spec.attention_bias = spec.attention_out_bias = spec.mlp_bias = config.boolean("enable_bias", true);
  spec.norm_affine = config.boolean("layer_norm_elementwise_affine", true);
  spec.final_norm = config.boolean("do_layer_norm_before", true) && !config.boolean("_remove_final_layer_norm", false);
  spec.activation = config.activation("activation_function", Activation::relu);
  spec.norm_eps = 1e-5;
  spec.dropout = config.number("dropout", 0.1, 0, 1);
}

void layer_shapes(ShapeList& list, const ModelSpec& spec, const std::string& layer) {
  const std::int64_t hidden = spec.hidden_size;
  for (const char* name : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
    list.linear(layer + "self_attn." + name, hidden, hidden, spec.attention_bias);
  }
  if (spec.norm_affine) list.layer_norm(layer + "self_attn_layer_norm", hidden);
  list.linear(layer + "fc1", spec.intermediate_size, hidden, spec.mlp_bias);
  list.linear(layer + "fc2", hidden, spec.intermediate_size, spec.mlp_bias);
  if (spec.norm_affine) list.layer_norm(layer + "final_layer_norm", hidden);
}

std::vector<NamedShape> opt_parameters(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "decoder." : "model.decoder.";
  const std::int64_t hidden = spec.hidden_size, word = spec.word_embed_proj_dim;
  ShapeList list;
  list.add(prefix + "embed_tokens.weight", {spec.vocab_size, word});
  list.add(prefix + "embed_positions.weight", {checked_add(spec.max_position_embeddings, kPositionOffset), hidden});
  if (word != hidden) {
    list.linear(prefix + "project_out", word, hidden, false);
    list.linear(prefix + "project_in", hidden, word, false);
  }
  if (spec.final_norm && spec.norm_affine) list.layer_norm(prefix + "final_layer_norm", hidden);
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    layer_shapes(list, spec, fmt::format("{}layers.{}.", prefix, i));
  }
  if (!is_headless(spec) && !spec.tie_word_embeddings) list.add("lm_head.weight", {spec.vocab_size, word});
  return list.take();
}

}  // namespace

Family opt_family() {
  return {.model_type = "opt",
          .classes = {"OPTForCausalLM", "OPTModel"},
          .parse = parse,
          .parameters = opt_parameters,
          .buffers = nullptr,
          .graph = nullptr};
}

}  // namespace vramfit
