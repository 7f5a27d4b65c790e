#include "tests/support/tiny_graph.h"

#include <string>

namespace vramfit::testing {

namespace {

Value rows(const std::string& name, std::int64_t columns, ValueType type = ValueType::compute) {
  return {name, {kTokens, fixed(columns)}, type};
}

Segment embedding_segment(const TinySizes& sizes) {
  Segment s{.name = "embed", .role = SegmentRole::embedding, .values = {}, .ops = {}};
  s.values = {{"ids", {kTokens}, ValueType::ids}, rows("x", sizes.hidden)};
  s.ops.push_back({OpKind::embedding, "embed_tokens", {0}, {{0}}, {1}, {}});
  s.output = 1;
  return s;
}

Segment block_segment(const TinySizes& sizes, int index) {
  Segment s{.name = "layers." + std::to_string(index), .role = SegmentRole::block, .values = {}, .ops = {}};
  s.values = {rows("x", sizes.hidden), rows("h", sizes.hidden), rows("f", sizes.hidden), rows("y", sizes.hidden)};
  s.ops.push_back({OpKind::linear, "proj", {0}, {{index + 1}}, {1}, {}});
  s.ops.push_back({OpKind::activation, "act", {1}, {}, {2}, {}});
  s.ops.push_back({OpKind::add, "residual", {0, 2}, {}, {3}, {}});
  s.output = 3;
  return s;
}

}  // namespace

Graph tiny_graph(const TinySizes& sizes) {
  Graph graph;
  graph.parameters.push_back({"embed.weight", {sizes.vocab, sizes.hidden}});
  graph.segments.push_back(embedding_segment(sizes));
  for (int i = 0; i < sizes.blocks; ++i) {
    graph.parameters.push_back({"layers." + std::to_string(i) + ".proj.weight", {sizes.hidden, sizes.hidden}});
    graph.segments.push_back(block_segment(sizes, i));
  }
  int head = 0;
  if (!sizes.tied) {
    head = static_cast<int>(graph.parameters.size());
    graph.parameters.push_back({"head.weight", {sizes.vocab, sizes.hidden}});
  }
  Segment output{.name = "head", .role = SegmentRole::head, .values = {}, .ops = {}};
  output.values = {rows("x", sizes.hidden), rows("logits", sizes.vocab)};
  output.ops.push_back({OpKind::linear, "lm_head", {0}, {{head}}, {1}, {}});
  output.output = 1;
  graph.segments.push_back(output);
  Segment loss{.name = "loss", .role = SegmentRole::loss, .values = {}, .ops = {}};
  loss.values = {rows("logits", sizes.vocab),
                 {"labels", {kTokens}, ValueType::ids},
                 {"loss", {fixed(1)}, ValueType::fp32},
                 {"lse", {kTokens}, ValueType::fp32}};
  loss.ops.push_back({OpKind::cross_entropy, "cross_entropy", {0, 1}, {}, {2, 3}, {}});
  loss.output = 2;
  loss.labels = 1;
  graph.segments.push_back(loss);
  return graph;
}

Job tiny_job() {
  Job job;
  job.precision = precision_named("fp32");
  job.sequence = 8;
  return job;
}

std::vector<Instruction> schedule_of(const Job& job, const Graph& graph) {
  const UnitLayout layout = lay_out_units(graph, job);
  return make_schedule({.job = job,
                        .graph = graph,
                        .layout = layout,
                        .segment_has_backward = std::vector<bool>(graph.segments.size(), true),
                        .clip = !job.optimizer_in_backward});
}

}  // namespace vramfit::testing
