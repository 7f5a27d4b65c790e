#include "program/pytorch/modelings/gpt2_graph.h"

#include <algorithm>

namespace vramfit::eager {

namespace {

constexpr const char* kOtherModel = "a model with learned positions built differently from GPT-2";

/// A segment's ops, in order.
class Reader {
 public:
  Reader(const Segment& segment, const Job& job) : segment_(segment), job_(job) {}

  bool is_next(OpKind kind) const { return next_ < segment_.ops.size() && segment_.ops[next_].kind == kind; }

  const Op& take(OpKind kind) {
    if (!is_next(kind)) refuse_model(job_, kOtherModel);
    return segment_.ops[next_++];
  }

  Gpt2Norm norm() {
    const Op& op = take(OpKind::layer_norm);
    return {.weight = op.parameters[0].parameter, .bias = op.parameters[1].parameter};
  }

  /// A linear with its adapter, if it has one.
  LlamaLinear conv1d() {
    const Op& op = take(OpKind::linear);
    if (!op.attributes.transposed_weight || op.parameters.size() < 2) refuse_model(job_, kOtherModel);
    LlamaLinear linear{.weight = op.parameters[0].parameter, .bias = op.parameters[1].parameter};
    if (!is_next(OpKind::lora)) return linear;
    const Op& adapter = take(OpKind::lora);
    linear.lora_a = adapter.parameters[0].parameter;
    linear.lora_b = adapter.parameters[1].parameter;
    return linear;
  }

  void require_end() const {
    if (next_ != segment_.ops.size()) refuse_model(job_, kOtherModel);
  }

 private:
  const Segment& segment_;
  const Job& job_;
  std::size_t next_ = 0;
};

Gpt2Block block_of(const Segment& segment, const Job& job, Gpt2Graph& gpt2) {
  Reader reader(segment, job);
  Gpt2Block block;
  block.name = segment.name;
  block.ln_1 = reader.norm();
  block.c_attn = reader.conv1d();
  for (int part = 1; part < 3; ++part) {
    if (reader.conv1d().weight != block.c_attn.weight) refuse_model(job, kOtherModel);
  }
  const Attributes& attention = reader.take(OpKind::attention).attributes;
  if (!attention.causal || attention.kv_heads != attention.heads) refuse_model(job, kOtherModel);
  gpt2.sizes.heads = attention.heads;
  gpt2.sizes.head_dim = attention.head_dim;
  gpt2.upcasts_scores = attention.upcasts_scores;
  block.attention_out = reader.conv1d();
  reader.take(OpKind::add);
  block.ln_2 = reader.norm();
  block.c_fc = reader.conv1d();
  const Attributes& activation = reader.take(OpKind::activation).attributes;
  gpt2.activation = activation.activation;
  gpt2.has_composed_activation = activation.is_composed;
  block.mlp_out = reader.conv1d();
  reader.take(OpKind::add);
  reader.require_end();
  return block;
}

}  // namespace

bool has_learned_positions(const Graph& graph) {
  return std::ranges::any_of(graph.segments.front().ops,
                             [](const Op& op) { return op.kind == OpKind::position_embedding; });
}

Gpt2Graph gpt2_graph(const Graph& graph, const Job& job) {
  const std::size_t n = graph.segments.size();
  if (n < 4 || graph.masked_lm) refuse_model(job, kOtherModel);
  Gpt2Graph gpt2;
  gpt2.dropout = graph.dropout;
  Reader reader(graph.segments.front(), job);
  gpt2.words = reader.take(OpKind::embedding).parameters.front().parameter;
  gpt2.positions = reader.take(OpKind::position_embedding).parameters.front().parameter;
  reader.require_end();
  for (std::size_t s = 1; s + 2 < n; ++s) gpt2.blocks.push_back(block_of(graph.segments[s], job, gpt2));
  Reader head(graph.segments[n - 2], job);
  gpt2.norm = head.norm();
  const Op& output = head.take(OpKind::linear);
  if (output.parameters.size() > 1) refuse_model(job, kOtherModel);
  gpt2.output = output.parameters.front().parameter;
  head.require_end();
  Reader(graph.segments[n - 1], job).take(OpKind::cross_entropy);
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  gpt2.sizes.batch = job.micro_batch;
  gpt2.sizes.sequence = job.sequence;
  gpt2.sizes.hidden = shape(gpt2.words)[1];
  gpt2.sizes.vocabulary = shape(gpt2.words)[0];
  gpt2.sizes.positions = shape(gpt2.positions)[0];
  gpt2.sizes.ffn = shape(gpt2.blocks.front().c_fc.weight)[1];
  return gpt2;
}

}  // namespace vramfit::eager
