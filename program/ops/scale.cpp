#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// y = scale * x in place of x, and the gradient of x in place of the gradient of y: backward reads neither.
Rule rule_of_scale(const OpContext& /*context*/, const Needs& /*needs*/) {
  Rule rule;
  rule.in_place_input = 0;
  rule.gradients = {{GradientSource::From::output_gradient, 0}};
  return rule;
}

/// One call that reads and writes all elements, in either direction.
OpWork work_of_scale(const OpContext& context, const Needs& needs) {
  return work_of_calls(context, needs, {.passes = 2, .launches = 1}, {.passes = 2, .launches = 1});
}

}  // namespace

const OpRow op_rows::scale{.rule = rule_of_scale, .work = work_of_scale};

}  // namespace vramfit
