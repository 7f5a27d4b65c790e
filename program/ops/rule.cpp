#include "program/ops/rule.h"

#include <algorithm>
#include <array>

#include "program/ops/op_row.h"
#include "program/ops/rules.h"

namespace vramfit {

namespace {

constexpr std::array kOpRows{
#define OP(name) &op_rows::name,
#include "model_specs/ops.def"
#undef OP
};

const Value& value_at(const Segment& segment, const std::vector<int>& values, int i) {
  return segment.values[static_cast<std::size_t>(values[static_cast<std::size_t>(i)])];
}

}  // namespace

std::int64_t OpContext::input_elements(int i) const { return element_count(value_at(segment, op.inputs, i), shape); }

std::int64_t OpContext::output_elements(int i) const { return element_count(value_at(segment, op.outputs, i), shape); }

const OpRow& op_row(OpKind kind) { return *kOpRows.at(static_cast<std::size_t>(kind)); }

Rule rule_for(const OpContext& context, const Needs& needs) {
  const OpRow& row = op_row(context.op.kind);
  Rule rule = row.rule(context, needs);
  rule.work = row.work(context, needs);
  if (row.joins && uses_own_kernel(context)) rule.joint_forward = row.joint(context, needs).forward;
  return rule;
}

bool adds_bias(const Graph& graph) {
  const auto adds = [](const Op& op) { return op_row(op.kind).adds_bias_in_product && op.parameters.size() > 1; };
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
