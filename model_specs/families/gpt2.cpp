// gpt2 (GPT2Config): learned positions, layer norms, biases everywhere, weights stored as (inputs, outputs).
#include <cmath>

#include <fmt/format.h>

#include "model_specs/families/decoder.h"
#include "model_specs/families/families.h"
#include "model_specs/families/graph_builder.h"

namespace vramfit {
namespace {

constexpr const char* kEmbedding = "transformer.wte.weight";
constexpr const char* kComposedGelu = "gelu_new";

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = config.size("vocab_size", 50257);
  // transformers takes the common names too.
  spec.hidden_size = config.size("n_embd", config.size("hidden_size", 768));
  spec.num_hidden_layers = config.layers("n_layer", config.layers("num_hidden_layers", 12));
  spec.num_attention_heads = config.size("n_head", config.size("num_attention_heads", 12));
  spec.max_position_embeddings = config.size("n_positions", config.size("max_position_embeddings", 1024));
  spec.has_position_table = true;
  spec.intermediate_size = config.optional_size("n_inner").value_or(4 * spec.hidden_size);
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.fail("n_head", fmt::format("{} doesn't divide n_embd, {}", spec.num_attention_heads, spec.hidden_size));
  }
  spec.num_key_value_heads = spec.num_attention_heads;
  spec.head_dim = spec.hidden_size / spec.num_attention_heads;
  spec.gated_mlp = false;
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  spec.attention_bias = spec.attention_out_bias = spec.mlp_bias = true;
  spec.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  spec.activation = config.activation("activation_function", Activation::gelu_tanh);
  spec.activation_is_composed = config.text("activation_function", kComposedGelu) == kComposedGelu;
  spec.dropout = config.number("resid_pdrop", 0.1, 0, 1);
  spec.embedding_dropout = config.number("embd_pdrop", 0.1, 0, 1);
  spec.attention_dropout = config.number("attn_pdrop", 0.1, 0, 1);
  if (!config.boolean("scale_attn_weights", true)) spec.attention_scale = 1.0;
  spec.upcasts_scores = config.boolean("reorder_and_upcast_attn", false);
  if (config.boolean("scale_attn_by_inverse_layer_idx", false)) {
    spec.graph_lacks = "scale_attn_by_inverse_layer_idx of gpt2";
  }
  if (config.boolean("add_cross_attention", false)) {
    config.fail("add_cross_attention", "gpt2 is counted as a decoder alone; set it to false");
  }
}

// gpt2's Conv1D: weight (inputs, outputs).
void conv1d(ShapeList& list, const std::string& module, std::int64_t in, std::int64_t out) {
  list.add(module + ".weight", {in, out});
  list.add(module + ".bias", {out});
}

std::vector<NamedShape> gpt2_parameters(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "" : "transformer.";
  const std::int64_t hidden = spec.hidden_size;
  ShapeList list;
  list.add(prefix + "wte.weight", {spec.vocab_size, hidden});
  list.add(prefix + "wpe.weight", {spec.max_position_embeddings, hidden});
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("{}h.{}.", prefix, i);
    list.layer_norm(layer + "ln_1", hidden);
    conv1d(list, layer + "attn.c_attn", hidden, 3 * hidden);
    conv1d(list, layer + "attn.c_proj", hidden, hidden);
    list.layer_norm(layer + "ln_2", hidden);
    conv1d(list, layer + "mlp.c_fc", hidden, spec.intermediate_size);
    conv1d(list, layer + "mlp.c_proj", spec.intermediate_size, hidden);
  }
  list.layer_norm(prefix + "ln_f", hidden);
  if (!is_headless(spec) && !spec.tie_word_embeddings) list.add("lm_head.weight", {spec.vocab_size, hidden});
  return list.take();
}

NormUse norm_use(const ModelSpec& spec, const std::string& module) {
  return {.weight = module + ".weight", .bias = module + ".bias", .eps = spec.norm_eps};
}

LinearUse conv1d_use(const std::string& module) {
  return {.weight = module + ".weight", .bias = module + ".bias", .transposed = true};
}

// Output features [part * hidden, (part + 1) * hidden) of c_attn: q, k and v.
LinearUse c_attn_use(const ModelSpec& spec, const std::string& module, std::int64_t part) {
  LinearUse use = conv1d_use(module);
  use.first = part * spec.hidden_size;
  use.count = spec.hidden_size;
  return use;
}

int block(GraphBuilder& builder, const ModelSpec& spec, const std::string& layer) {
  Attributes attributes;
  attributes.heads = attributes.kv_heads = spec.num_attention_heads;
  attributes.head_dim = spec.head_dim;
  attributes.upcasts_scores = spec.upcasts_scores;
  attributes.scale = spec.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  const int normed = builder.layer_norm("ln_1", 0, norm_use(spec, layer + "ln_1"));
  const int q = builder.linear("attn.q_proj", normed, c_attn_use(spec, layer + "attn.c_attn", 0));
  const int k = builder.linear("attn.k_proj", normed, c_attn_use(spec, layer + "attn.c_attn", 1));
  const int v = builder.linear("attn.v_proj", normed, c_attn_use(spec, layer + "attn.c_attn", 2));
  const int out = builder.attention("attn.attention", q, k, v, attributes);
  const int projected = builder.linear("attn.c_proj", out, conv1d_use(layer + "attn.c_proj"));
  const int middle = builder.add("residual_1", 0, projected);
  const int fed = builder.layer_norm("ln_2", middle, norm_use(spec, layer + "ln_2"));
  const int wide = builder.linear("mlp.c_fc", fed, conv1d_use(layer + "mlp.c_fc"));
  const int active = builder.apply(OpKind::activation, "mlp.act", wide,
                                   {.activation = spec.activation, .is_composed = spec.activation_is_composed});
  return builder.add("residual_2", middle, builder.linear("mlp.c_proj", active, conv1d_use(layer + "mlp.c_proj")));
}

Graph gpt2_graph(const ModelSpec& spec, const LossOptions& loss) {
  GraphBuilder builder(gpt2_parameters(spec));
  builder.begin("embed", SegmentRole::embedding, 0, "ids");
  const int words = builder.embedding("wte", kEmbedding);
  builder.end(builder.add_embedding(OpKind::position_embedding, "wpe", words, "transformer.wpe.weight"));
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    builder.begin(fmt::format("layers.{}", i), SegmentRole::block, spec.hidden_size);
    builder.end(block(builder, spec, fmt::format("transformer.h.{}.", i)));
  }
  builder.begin("head", SegmentRole::head, spec.hidden_size);
  const int x = builder.layer_norm("ln_f", 0, norm_use(spec, "transformer.ln_f"));
  builder.finish_with_loss(x, {.weight = spec.tie_word_embeddings ? kEmbedding : "lm_head.weight"}, 0, loss);
  Graph graph = builder.take();
  graph.dropout = {.embedding = spec.embedding_dropout, .attention = spec.attention_dropout, .hidden = spec.dropout};
  return graph;
}

}  // namespace

Family gpt2_family() {
  return {.model_type = "gpt2",
          .classes = {"GPT2LMHeadModel", "GPT2Model"},
          .parse = parse,
          .parameters = gpt2_parameters,
          .buffers = nullptr,
          .graph = gpt2_graph};
}

}  // namespace vramfit
