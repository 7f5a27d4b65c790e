#include "program/rule.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "program/ops/rules.h"

namespace vramfit {

namespace {

struct Row {
  OpKind kind;
  Rule (*rule)(const OpContext&, const Needs&);
  OpWork (*work)(const OpContext&, const Needs&) = work_of_passes;
};

constexpr std::array kRules{
    Row{OpKind::embedding, rule_of_embedding},
    Row{OpKind::position_embedding, rule_of_position_embedding},
    Row{OpKind::type_embedding, rule_of_type_embedding},
    Row{OpKind::rms_norm, rule_of_rms_norm, work_of_rms_norm},
    Row{OpKind::layer_norm, rule_of_layer_norm, work_of_layer_norm},
    Row{OpKind::linear, rule_of_linear, work_of_linear},
    Row{OpKind::rope, rule_of_rope, work_of_rope},
    Row{OpKind::attention, rule_of_attention, work_of_attention},
    Row{OpKind::glu, rule_of_glu, work_of_glu},
    Row{OpKind::activation, rule_of_activation},
    Row{OpKind::add, rule_of_add, work_of_add},
    Row{OpKind::softcap, rule_of_softcap},
    Row{OpKind::cross_entropy, rule_of_cross_entropy, work_of_cross_entropy},
    Row{OpKind::linear_cross_entropy, rule_of_linear_cross_entropy, work_of_linear_cross_entropy},
};

const Value& value_at(const Segment& segment, const std::vector<int>& values, int i) {
  return segment.values[static_cast<std::size_t>(values[static_cast<std::size_t>(i)])];
}

}  // namespace

std::int64_t OpContext::input_elements(int i) const { return element_count(value_at(segment, op.inputs, i), shape); }

std::int64_t OpContext::output_elements(int i) const { return element_count(value_at(segment, op.outputs, i), shape); }

Rule rule_for(const OpContext& context, const Needs& needs) {
  const auto* const row = std::ranges::find(kRules, context.op.kind, &Row::kind);
  if (row == kRules.end()) throw NotModelled("op " + std::string(op_name(context.op.kind)));
  Rule rule = row->rule(context, needs);
  rule.work = row->work(context, needs);
  return rule;
}

bool adds_bias(const Graph& graph) {
  const auto adds = [](const Op& op) {
    return (op.kind == OpKind::linear || op.kind == OpKind::linear_cross_entropy) && op.parameters.size() > 1;
  };
  return std::ranges::any_of(graph.segments, [&](const Segment& s) { return std::ranges::any_of(s.ops, adds); });
}

Dtype value_dtype(const Value& value, const Precision& precision) {
  switch (value.type) {
    case ValueType::compute:
      return precision.compute;
    case ValueType::fp32:
      return Dtype::f32;
    case ValueType::ids:
      return Dtype::i64;
  }
  return precision.compute;
}

}  // namespace vramfit
