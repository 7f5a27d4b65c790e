#include "program/ops/magnitude.h"

#include <algorithm>

#include "program/ops/rules.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 22;

std::int64_t width_of(const OpContext& context) { return context.input_elements(1); }

/// Whether `op` writes over `value`.
bool takes_over(const OpContext& context, const Op& op, int value) {
  const auto input = std::ranges::find(op.inputs, value);
  if (input == op.inputs.end()) return false;
  const OpContext reader{.op = op,
                         .segment = context.segment,
                         .graph = context.graph,
                         .precision = context.precision,
                         .device = context.device,
                         .attention = context.attention,
                         .deterministic = context.deterministic,
                         .shape = context.shape,
                         .kernels = context.kernels};
  return op_row(op.kind).rule(reader, {}).in_place_input == input - op.inputs.begin();
}

}  // namespace

/// Backward needs one of x and y. Where y stays as it is, its readers mostly save it too (gates, values, rows that are
/// normalized), so that nothing more is kept; else (queries, what is added to the residual) x is.
bool scales_in_place(const OpContext& context) {
  const int output = context.op.outputs.front();
  return std::ranges::none_of(context.segment.ops, [&](const Op& op) { return takes_over(context, op, output); });
}

std::int64_t summed_tokens(std::int64_t tokens, std::int64_t width) {
  return std::clamp<std::int64_t>(kMostElements / width, 1, tokens);
}

namespace {

void add_cuda_steps(const OpContext& context, const Needs& needs, Rule& rule) {
  const std::int64_t width = width_of(context), tokens = summed_tokens(context.tokens(), width);
  rule.forward.push_back(temporary("factors", width, Dtype::f32));
  if (context.op.parameters.size() > 1) rule.forward.push_back(temporary("shifts", width, Dtype::f32));
  if (wants_parameter(needs, 0)) {
    rule.backward.push_back(temporary("rows", checked_mul(tokens, width), Dtype::f32));
    rule.backward.push_back(temporary("ones", tokens, Dtype::f32));
    rule.backward.push_back(temporary("sums", width, Dtype::f32));
  }
  if (wants_input(needs, 0)) rule.backward.push_back(temporary("factors", width, Dtype::f32));
}

/// y = (x - bias) m / norms + bias, with norms that are constants of backward (DoRA, section 4.3). The gradient of x is
/// that of y times m / norms, written over it.
Rule rule_of_magnitude(const OpContext& context, const Needs& needs) {
  const bool in_place = scales_in_place(context);
  Rule rule;
  rule.in_place_input = in_place ? 0 : -1;
  rule.gradients = {{GradientSource::From::output_gradient, 0}};
  if (wants_parameter(needs, 0)) rule.saved.push_back(in_place ? output(0) : input(0));
  rule.saved.push_back(input(1));
  if (is_cuda(context)) add_cuda_steps(context, needs, rule);
  return rule;
}

/// CUDA: x is read and y written. Backward reads both it has and writes, multiplies and sums rows in fp32, then reads
/// the gradient again for that of x.
OpWork work_of_magnitude(const OpContext& context, const Needs& needs) {
  constexpr std::int64_t kCallsOfPart = 4, kOtherCalls = 8;
  const std::int64_t parts = ceil_div(context.tokens(), summed_tokens(context.tokens(), width_of(context)));
  return work_of_calls(context, needs, {.passes = 2, .launches = 4},
                       {.passes = 12, .launches = kOtherCalls + kCallsOfPart * parts});
}

}  // namespace

const OpRow op_rows::magnitude{.rule = rule_of_magnitude, .work = work_of_magnitude};

}  // namespace vramfit
