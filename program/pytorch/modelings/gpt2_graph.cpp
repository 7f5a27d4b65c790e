#include "program/pytorch/modelings/gpt2_graph.h"

#include <algorithm>

#include "program/stages/score_head.h"

namespace vramfit::eager {

namespace {

constexpr const char* kOtherThanGpt2 = "a model with learned positions built differently from GPT-2";

LinearParameters conv1d(SegmentReader& reader) {
  const Op& op = reader.take(OpKind::linear);
  if (!op.attributes.transposed_weight || op.parameters.size() < 2) reader.refuse();
  return reader.with_adapter(op);
}

Gpt2Block block_of(const Segment& segment, const Job& job, Gpt2Graph& gpt2) {
  SegmentReader reader(segment, job, kOtherThanGpt2);
  Gpt2Block block;
  block.name = segment.name;
  block.ln_1 = reader.layer_norm();
  block.c_attn = conv1d(reader);
  for (int part = 1; part < 3; ++part) {
    if (conv1d(reader).weight != block.c_attn.weight) reader.refuse();
  }
  const Attributes& attention = reader.take(OpKind::attention).attributes;
  if (!attention.causal || attention.kv_heads != attention.heads) reader.refuse();
  gpt2.sizes.heads = attention.heads;
  gpt2.sizes.head_dim = attention.head_dim;
  gpt2.upcasts_scores = attention.upcasts_scores;
  block.attention_out = conv1d(reader);
  reader.take(OpKind::add);
  block.ln_2 = reader.layer_norm();
  block.c_fc = conv1d(reader);
  const Attributes& activation = reader.take(OpKind::activation).attributes;
  gpt2.activation = activation.activation;
  gpt2.has_composed_activation = activation.is_composed;
  block.mlp_out = conv1d(reader);
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
  if (n < 4 || graph.masked_lm) refuse_model(job, kOtherThanGpt2);
  Gpt2Graph gpt2;
  gpt2.dropout = graph.dropout;
  SegmentReader reader(graph.segments.front(), job, kOtherThanGpt2);
  gpt2.words = reader.take(OpKind::embedding).parameters.front().parameter;
  gpt2.positions = reader.take(OpKind::position_embedding).parameters.front().parameter;
  reader.require_end();
  for (std::size_t s = 1; s + 2 < n; ++s) gpt2.blocks.push_back(block_of(graph.segments[s], job, gpt2));
  SegmentReader head(graph.segments[n - 2], job, kOtherThanGpt2);
  gpt2.norm = head.layer_norm();
  const Op& output = head.take(OpKind::linear);
  if (output.parameters.size() > 1) head.refuse();
  gpt2.output = output.parameters.front().parameter;
  head.require_end();
  SegmentReader(graph.segments[n - 1], job, kOtherThanGpt2).take(OpKind::cross_entropy);
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  gpt2.sizes.batch = job.micro_batch;
  gpt2.sizes.sequence = job.sequence;
  gpt2.sizes.hidden = shape(gpt2.words)[1];
  gpt2.sizes.vocabulary = shape(gpt2.words)[0];
  gpt2.sizes.outputs = shape(gpt2.output)[0];
  gpt2.scores = score_parameters(graph);
  gpt2.sizes.positions = shape(gpt2.positions)[0];
  gpt2.sizes.ffn = shape(gpt2.blocks.front().c_fc.weight)[1];
  return gpt2;
}

}  // namespace vramfit::eager
