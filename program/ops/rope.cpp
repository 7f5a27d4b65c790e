#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// Rotation of pairs, in place of x; its gradient is the rotation by the opposite angle, in place of y's gradient.
/// cos and sin are the graph's tables, made at load.
///
/// CPU and own kernels: each pair is read before it is written. CUDA works on halves of a head: x1 * sin of the rotated
/// part goes to a temporary (forward and backward alike), then x1 and x2 are updated in place with mul_ and addcmul_.
Rule rule_of_rope(const OpContext& context, const Needs& /*needs*/) {
  Rule rule;
  rule.in_place_input = 0;
  rule.gradients = {{GradientSource::From::output_gradient, 0}};
  if (is_cuda(context) && !uses_own_kernel(context)) {
    const Attributes& a = context.op.attributes;
    const std::int64_t rotated_half = context.graph.rope_dims[static_cast<std::size_t>(a.rope_table)] / 2;
    const std::int64_t elements = checked_mul(checked_mul(context.tokens(), a.heads), rotated_half);
    rule.forward = rule.backward = {temporary("half", elements, context.compute())};
  }
  return rule;
}

/// CUDA, half of each head at a time: half = x1 sin (1 pass over all), x1 cos (1), - x2 sin (1.5), x2 cos (1),
/// + half (1.5). Backward turns the gradient back.
OpWork work_of_rope(const OpContext& context, const Needs& needs) {
  constexpr Calls kOwnTurn{.passes = 2, .launches = 1}, kTurn{.passes = 6, .launches = 5};
  if (uses_own_kernel(context)) return work_of_calls(context, needs, kOwnTurn, kOwnTurn);
  return work_of_calls(context, needs, kTurn, kTurn);
}

}  // namespace

const OpRow op_rows::rope{.rule = rule_of_rope, .work = work_of_rope, .has_own_kernel = true};

}  // namespace vramfit
