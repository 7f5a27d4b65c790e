// bert (BertConfig): post-normed blocks, attention in both directions, masked-language-model head.
#include <cmath>

#include <fmt/format.h>

#include "model_specs/families/decoder.h"
#include "model_specs/families/families.h"
#include "model_specs/families/graph_builder.h"

namespace vramfit {
namespace {

constexpr const char* kEmbedding = "bert.embeddings.word_embeddings.weight";
constexpr const char* kPreTraining = "BertForPreTraining";

void parse(ConfigReader& config, ModelSpec& spec) {
  spec.vocab_size = 30522;
  spec.hidden_size = 768;
  spec.intermediate_size = 3072;
  spec.num_hidden_layers = 12;
  spec.num_attention_heads = 12;
  spec.max_position_embeddings = 512;
  spec.has_position_table = true;
  read_decoder_sizes(config, spec);
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.fail("num_attention_heads",
                fmt::format("{} doesn't divide hidden_size, {}", spec.num_attention_heads, spec.hidden_size));
  }
  spec.num_key_value_heads = spec.num_attention_heads;
  spec.head_dim = spec.hidden_size / spec.num_attention_heads;
  spec.type_vocab_size = config.size("type_vocab_size", 2);
  spec.gated_mlp = false;
  spec.tie_word_embeddings = config.boolean("tie_word_embeddings", true);
  spec.attention_bias = spec.attention_out_bias = spec.mlp_bias = true;
  spec.norm_eps = config.number("layer_norm_eps", 1e-12);
  spec.activation = config.activation("hidden_act", Activation::gelu_erf);
  spec.activation_is_composed = config.text("hidden_act", "gelu") == "gelu_new";
  spec.dropout = spec.embedding_dropout = config.number("hidden_dropout_prob", 0.1, 0, 1);
  spec.attention_dropout = config.number("attention_probs_dropout_prob", 0.1, 0, 1);
  if (config.size_or_zero("chunk_size_feed_forward", 0) > 0) spec.graph_lacks = "chunk_size_feed_forward of bert";
  if (config.boolean("is_decoder", false)) spec.graph_lacks = "is_decoder of bert";
  // Its decoder leaves cls.predictions.bias without a gradient.
  if (!spec.tie_word_embeddings) spec.graph_lacks = "untied embeddings of bert";
  if (config.boolean("add_cross_attention", false)) {
    config.fail("add_cross_attention", "bert is counted as an encoder alone; set it to false");
  }
}

void layer_shapes(ShapeList& list, const ModelSpec& spec, const std::string& layer) {
  const std::int64_t hidden = spec.hidden_size;
  for (const char* name : {"query", "key", "value"})
    list.linear(layer + "attention.self." + name, hidden, hidden, true);
  list.linear(layer + "attention.output.dense", hidden, hidden, true);
  list.layer_norm(layer + "attention.output.LayerNorm", hidden);
  list.linear(layer + "intermediate.dense", spec.intermediate_size, hidden, true);
  list.linear(layer + "output.dense", hidden, spec.intermediate_size, true);
  list.layer_norm(layer + "output.LayerNorm", hidden);
}

void head_shapes(ShapeList& list, const ModelSpec& spec) {
  const std::int64_t hidden = spec.hidden_size;
  list.add("cls.predictions.bias", {spec.vocab_size});
  list.linear("cls.predictions.transform.dense", hidden, hidden, true);
  list.layer_norm("cls.predictions.transform.LayerNorm", hidden);
  // If untied, the decoder has its own bias in addition to cls.predictions.bias.
  if (!spec.tie_word_embeddings) list.linear("cls.predictions.decoder", spec.vocab_size, hidden, true);
  if (spec.architecture == kPreTraining) list.linear("cls.seq_relationship", 2, hidden, true);
}

std::vector<NamedShape> bert_parameters(const ModelSpec& spec) {
  const bool headless = is_headless(spec);
  const std::string prefix = headless ? "" : "bert.";
  const std::int64_t hidden = spec.hidden_size;
  ShapeList list;
  list.add(prefix + "embeddings.word_embeddings.weight", {spec.vocab_size, hidden});
  list.add(prefix + "embeddings.position_embeddings.weight", {spec.max_position_embeddings, hidden});
  list.add(prefix + "embeddings.token_type_embeddings.weight", {spec.type_vocab_size, hidden});
  list.layer_norm(prefix + "embeddings.LayerNorm", hidden);
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    layer_shapes(list, spec, fmt::format("{}encoder.layer.{}.", prefix, i));
  }
  if (headless || spec.architecture == kPreTraining) list.linear(prefix + "pooler.dense", hidden, hidden, true);
  if (!headless) head_shapes(list, spec);
  return list.take();
}

std::vector<NamedBuffer> bert_buffers(const ModelSpec& spec) {
  const std::string prefix = is_headless(spec) ? "" : "bert.";
  return {{prefix + "embeddings.position_ids", {1, spec.max_position_embeddings}, Dtype::i64, false},
          {prefix + "embeddings.token_type_ids", {1, spec.max_position_embeddings}, Dtype::i64, false}};
}

NormUse norm_use(const ModelSpec& spec, const std::string& module) {
  return {.weight = module + ".weight", .bias = module + ".bias", .eps = spec.norm_eps};
}

LinearUse linear_use(const std::string& module) { return {.weight = module + ".weight", .bias = module + ".bias"}; }

int block(GraphBuilder& builder, const ModelSpec& spec, const std::string& layer) {
  Attributes attributes;
  attributes.heads = attributes.kv_heads = spec.num_attention_heads;
  attributes.head_dim = spec.head_dim;
  attributes.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  attributes.causal = false;
  const auto linear = [&](const std::string& module, int x) {
    return builder.linear(module, x, linear_use(layer + module));
  };
  const int q = linear("attention.self.query", 0);
  const int k = linear("attention.self.key", 0);
  const int v = linear("attention.self.value", 0);
  const int out = builder.attention("attention.self.attention", q, k, v, attributes);
  const int first = builder.add("residual_1", 0, linear("attention.output.dense", out));
  const int middle =
      builder.layer_norm("attention.output.LayerNorm", first, norm_use(spec, layer + "attention.output.LayerNorm"));
  const int active = builder.apply(OpKind::activation, "intermediate.act", linear("intermediate.dense", middle),
                                   {.activation = spec.activation, .is_composed = spec.activation_is_composed});
  const int second = builder.add("residual_2", middle, linear("output.dense", active));
  return builder.layer_norm("output.LayerNorm", second, norm_use(spec, layer + "output.LayerNorm"));
}

Graph bert_graph(const ModelSpec& spec, const LossOptions& loss) {
  GraphBuilder builder(bert_parameters(spec));
  builder.begin("embed", SegmentRole::embedding, 0, "ids");
  int x = builder.embedding("word_embeddings", kEmbedding);
  x = builder.add_embedding(OpKind::type_embedding, "token_type_embeddings", x,
                            "bert.embeddings.token_type_embeddings.weight");
  x = builder.add_embedding(OpKind::position_embedding, "position_embeddings", x,
                            "bert.embeddings.position_embeddings.weight");
  builder.end(builder.layer_norm("LayerNorm", x, norm_use(spec, "bert.embeddings.LayerNorm")));
  for (std::int64_t i = 0; i < spec.num_hidden_layers; ++i) {
    builder.begin(fmt::format("layers.{}", i), SegmentRole::block, spec.hidden_size);
    builder.end(block(builder, spec, fmt::format("bert.encoder.layer.{}.", i)));
  }
  builder.begin("head", SegmentRole::head, spec.hidden_size);
  x = builder.linear("transform.dense", 0, linear_use("cls.predictions.transform.dense"));
  x = builder.apply(OpKind::activation, "transform.act", x,
                    {.activation = spec.activation, .is_composed = spec.activation_is_composed});
  x = builder.layer_norm("transform.LayerNorm", x, norm_use(spec, "cls.predictions.transform.LayerNorm"));
  builder.finish_with_loss(x, {.weight = kEmbedding, .bias = "cls.predictions.bias"}, 0, loss);
  Graph graph = builder.take();
  graph.masked_lm = true;
  graph.dropout = {.embedding = spec.embedding_dropout, .attention = spec.attention_dropout, .hidden = spec.dropout};
  return graph;
}

}  // namespace

Family bert_family() {
  return {.model_type = "bert",
          .classes = {"BertForMaskedLM", "BertModel", kPreTraining},
          .parse = parse,
          .parameters = bert_parameters,
          .buffers = bert_buffers,
          .graph = bert_graph,
          .unsplit_modules = {"embeddings"}};
}

}  // namespace vramfit
