#include "tests/support/graph_check.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace vramfit::testing {
namespace {

constexpr BatchShape kShape{.batch = 3, .sequence = 7};
constexpr std::int64_t kRows = 21;

// One segment's op, with sizes looked up.
struct Looked {
  const Graph& graph;
  const Segment& segment;
  const Op& op;

  const Value& value(int index) const { return segment.values[static_cast<std::size_t>(index)]; }
  const Value& input(std::size_t i) const { return value(op.inputs.at(i)); }
  const Value& output(std::size_t i) const { return value(op.outputs.at(i)); }
  static std::int64_t features(const Value& v) { return element_count(v, kShape) / kRows; }
  std::int64_t in(std::size_t i) const { return features(input(i)); }
  std::int64_t out(std::size_t i) const { return features(output(i)); }
  const Parameter& parameter(std::size_t i) const {
    return graph.parameters[static_cast<std::size_t>(op.parameters.at(i).parameter)];
  }
  /// Output features of parameter i that are used.
  std::int64_t used(std::size_t i, std::size_t dim) const {
    const ParameterUse& use = op.parameters.at(i);
    const std::int64_t all = parameter(i).shape.at(dim);
    CHECK(use.first >= 0);
    CHECK(use.first + std::max<std::int64_t>(use.count, 0) <= all);
    return use.count < 0 ? all : use.count;
  }
};

void check_counts(const Looked& at, std::size_t inputs, std::size_t parameters, std::size_t outputs) {
  CHECK(at.op.inputs.size() == inputs);
  CHECK(at.op.parameters.size() == parameters);
  CHECK(at.op.outputs.size() == outputs);
}

void check_linear(const Looked& at) {
  const bool transposed = at.op.attributes.transposed_weight;
  check_counts(at, 1, at.op.parameters.size() == 2 ? 2 : 1, 1);
  CHECK(at.parameter(0).shape.at(transposed ? 0 : 1) == at.in(0));
  CHECK(at.used(0, transposed ? 1 : 0) == at.out(0));
  if (at.op.parameters.size() == 2) CHECK(at.used(1, 0) == at.out(0));
}

void check_norm(const Looked& at, bool layer_norm) {
  const std::int64_t groups = at.op.attributes.groups;
  check_counts(at, 1, layer_norm ? 2 : 1, layer_norm ? 3 : 2);
  CHECK(at.op.attributes.eps > 0);
  CHECK(at.in(0) == at.out(0));
  CHECK(at.parameter(0).shape == std::vector<std::int64_t>{at.in(0) / groups});
  for (std::size_t i = 1; i < at.op.outputs.size(); ++i) {
    CHECK(at.out(i) == groups);
    CHECK(at.output(i).type == ValueType::fp32);
  }
}

void check_attention(const Looked& at) {
  const Attributes& a = at.op.attributes;
  const bool has_sinks = !at.op.parameters.empty();
  check_counts(at, 3, has_sinks ? 1 : 0, 2);
  if (has_sinks) CHECK(at.parameter(0).shape == std::vector<std::int64_t>{a.heads});
  CHECK(a.heads % a.kv_heads == 0);
  CHECK(at.in(0) == a.heads * a.head_dim);
  CHECK(at.in(1) == a.kv_heads * a.head_dim);
  CHECK(at.in(2) == a.kv_heads * a.head_dim);
  CHECK(at.out(0) == at.in(0));
  CHECK(element_count(at.output(1), kShape) == a.heads * kRows);
  CHECK(at.output(1).type == ValueType::fp32);
}

/// B may be used in parts.
void check_lora(const Looked& at) {
  const bool has_norms = at.op.outputs.size() > 2;
  has_norms ? check_counts(at, 2, 3, 3) : check_counts(at, 2, 2, 2);
  if (has_norms) CHECK(element_count(at.output(2), kShape) == at.in(1));
  CHECK(at.parameter(0).shape == std::vector<std::int64_t>{at.out(1), at.in(0)});
  CHECK(at.parameter(1).shape.at(1) == at.out(1));
  CHECK(at.used(1, 0) == at.in(1));
  CHECK(at.out(0) == at.in(1));
  CHECK(at.op.attributes.scale > 0);
}

void check_experts(const Looked& at) {
  using Shape = std::vector<std::int64_t>;
  const bool is_transposed = at.op.attributes.transposed_weight;  // with biases, then
  check_counts(at, 1, is_transposed ? 6 : 3, 1);
  const std::int64_t experts = at.parameter(0).shape.at(0), width = at.in(0);
  const std::int64_t inner = at.parameter(2).shape.at(is_transposed ? 1 : 2);
  CHECK(at.parameter(0).shape == Shape{experts, width});
  CHECK(at.parameter(1).shape == (is_transposed ? Shape{experts, width, 2 * inner} : Shape{experts, 2 * inner, width}));
  CHECK(at.parameter(2).shape == (is_transposed ? Shape{experts, inner, width} : Shape{experts, width, inner}));
  if (is_transposed) {
    CHECK(at.parameter(3).shape == Shape{experts});
    CHECK(at.parameter(4).shape == Shape{experts, 2 * inner});
    CHECK(at.parameter(5).shape == Shape{experts, width});
  }
  CHECK(at.op.attributes.experts_per_token > 0);
  CHECK(at.op.attributes.experts_per_token <= experts);
  CHECK(at.in(0) == at.out(0));
}

void check_magnitude(const Looked& at) {
  CHECK(at.op.inputs.size() == 2);
  CHECK(element_count(at.input(1), kShape) == at.in(0));
  CHECK(at.out(0) == at.in(0));
  CHECK(at.used(0, 0) == at.in(0));
}

void check_dropped_dora(const Looked& at) {
  const bool transposed = at.op.attributes.transposed_weight;
  check_counts(at, 2, 4, 4);
  CHECK(at.parameter(0).shape == std::vector<std::int64_t>{at.out(1), at.in(0)});
  CHECK(at.parameter(1).shape.at(1) == at.out(1));
  CHECK(at.used(1, 0) == at.in(1));
  CHECK(at.used(2, 0) == at.in(1));
  CHECK(at.parameter(3).shape.at(transposed ? 0 : 1) == at.in(0));
  CHECK(at.used(3, transposed ? 1 : 0) == at.in(1));
  CHECK(at.out(0) == at.in(1));
  CHECK(element_count(at.output(2), kShape) == at.in(1));
  CHECK(at.out(3) == at.in(1));
  CHECK(at.op.attributes.dropout > 0);
}

void check_rope(const Looked& at) {
  const Attributes& a = at.op.attributes;
  check_counts(at, 1, 0, 1);
  CHECK(at.in(0) == a.heads * a.head_dim);
  CHECK(at.in(0) == at.out(0));
  REQUIRE(a.rope_table >= 0);
  REQUIRE(static_cast<std::size_t>(a.rope_table) < at.graph.ropes.size());
  const std::int64_t dims = at.graph.rope_dims.at(static_cast<std::size_t>(a.rope_table));
  CHECK(dims <= a.head_dim);
  CHECK(dims % 2 == 0);
}

void check_loss(const Looked& at, bool with_linear) {
  CHECK(at.op.inputs.size() == 2);
  CHECK(at.op.inputs[1] == at.segment.labels);
  CHECK(at.input(1).type == ValueType::ids);
  CHECK(element_count(at.output(0), kShape) == 1);
  CHECK(at.output(0).type == ValueType::fp32);
  if (with_linear) {
    CHECK(at.parameter(0).shape.at(1) == at.in(0));
    CHECK(at.op.attributes.chunks > 0);
  } else {
    check_counts(at, 2, 0, 2);
    CHECK(at.out(1) == 1);
  }
}

void check_shapes(const Looked& at) {
  switch (at.op.kind) {
    case OpKind::embedding:
      check_counts(at, 1, 1, 1);
      CHECK(at.input(0).type == ValueType::ids);
      CHECK(at.parameter(0).shape.at(1) == at.out(0));
      return;
    case OpKind::position_embedding:
    case OpKind::type_embedding:
      check_counts(at, 1, 1, 1);
      CHECK(at.parameter(0).shape.at(1) == at.in(0));
      CHECK(at.in(0) == at.out(0));
      return;
    case OpKind::rms_norm:
      return check_norm(at, false);
    case OpKind::layer_norm:
      return check_norm(at, true);
    case OpKind::linear:
      return check_linear(at);
    case OpKind::lora:
      return check_lora(at);
    case OpKind::magnitude:
      return check_magnitude(at);
    case OpKind::dropped_dora:
      return check_dropped_dora(at);
    case OpKind::rope:
      return check_rope(at);
    case OpKind::attention:
      return check_attention(at);
    case OpKind::experts:
      return check_experts(at);
    case OpKind::glu:
    case OpKind::add:
      check_counts(at, 2, 0, 1);
      CHECK(at.in(0) == at.in(1));
      CHECK(at.in(0) == at.out(0));
      return;
    case OpKind::activation:
    case OpKind::softcap:
    case OpKind::scale:
      check_counts(at, 1, 0, 1);
      CHECK(at.in(0) == at.out(0));
      return;
    case OpKind::cross_entropy:
      return check_loss(at, false);
    case OpKind::linear_cross_entropy:
      return check_loss(at, true);
  }
}

// The input whose storage an op takes over, as the comments of OpKind say.
int overwritten(const Op& op) {
  switch (op.kind) {
    case OpKind::rope:
    case OpKind::position_embedding:
    case OpKind::type_embedding:
    case OpKind::scale:
      return op.inputs.at(0);
    case OpKind::add:
    case OpKind::lora:
    case OpKind::dropped_dora:
      return op.inputs.at(1);
    case OpKind::embedding:
    case OpKind::rms_norm:
    case OpKind::layer_norm:
    case OpKind::linear:
    case OpKind::magnitude:
    case OpKind::attention:
    case OpKind::experts:
    case OpKind::glu:
    case OpKind::activation:
    case OpKind::softcap:
    case OpKind::cross_entropy:
    case OpKind::linear_cross_entropy:
      return -1;
  }
  return -1;
}

void check_segment(const Graph& graph, const Segment& segment) {
  CAPTURE(segment.name);
  CHECK(segment.input == 0);
  std::set<std::string> names;
  for (const Value& value : segment.values) CHECK(names.insert(value.name).second);
  std::set<int> live{0};
  if (segment.labels >= 0) live.insert(segment.labels);
  std::set<std::string> op_names;
  for (const Op& op : segment.ops) {
    CAPTURE(op.name);
    CHECK(op_names.insert(op.name).second);
    for (const int input : op.inputs) CHECK(live.count(input) == 1);
    for (const ParameterUse& use : op.parameters) {
      REQUIRE(use.parameter >= 0);
      REQUIRE(static_cast<std::size_t>(use.parameter) < graph.parameters.size());
    }
    check_shapes({graph, segment, op});
    const int gone = overwritten(op);
    CHECK(gone != 0);  // the segment's input belongs to the one before, which may keep it
    live.erase(gone);
    for (const int output : op.outputs) {
      REQUIRE(output > 0);
      REQUIRE(static_cast<std::size_t>(output) < segment.values.size());
      CHECK(live.insert(output).second);
    }
  }
  CHECK(live.count(segment.output) == 1);
}

}  // namespace

void check_graph(const Graph& graph) {
  REQUIRE(graph.segments.size() >= 3);
  CHECK(graph.segments.front().role == SegmentRole::embedding);
  CHECK(graph.rope_dims.size() == graph.ropes.size());
  for (std::size_t i = 0; i < graph.segments.size(); ++i) {
    check_segment(graph, graph.segments[i]);
    if (i == 0) continue;
    const Segment& before = graph.segments[i - 1];
    const Value& made = before.values.at(static_cast<std::size_t>(before.output));
    CHECK(made.shape == graph.segments[i].values.front().shape);
    CHECK(made.type == graph.segments[i].values.front().type);
  }
  const Segment& last = graph.segments.back();
  CHECK(element_count(last.values.at(static_cast<std::size_t>(last.output)), kShape) == 1);
}

std::vector<std::string> unused_parameters(const Graph& graph) {
  std::vector<std::int64_t> used(graph.parameters.size(), 0), features(graph.parameters.size(), 1);
  const auto note = [&](const Op& op, const ParameterUse& use) {
    const auto index = static_cast<std::size_t>(use.parameter);
    const std::vector<std::int64_t>& shape = graph.parameters[index].shape;
    features[index] = shape[op.attributes.transposed_weight && shape.size() == 2 ? 1 : 0];
    used[index] += use.count < 0 ? features[index] : use.count;
  };
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) {
      for (const ParameterUse& use : op.parameters) note(op, use);
    }
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] < features[i]) names.push_back(graph.parameters[i].name);
  }
  return names;
}

}  // namespace vramfit::testing
