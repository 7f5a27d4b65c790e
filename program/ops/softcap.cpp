#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// y = cap * tanh(x / cap), in place of x. The derivative is 1 - (y / cap)^2: only y is kept, and the gradient of x is
/// the gradient of y scaled in place.
Rule rule_of_softcap(const OpContext& /*context*/, const Needs& /*needs*/) {
  Rule rule;
  rule.saved = {output(0)};
  rule.in_place_input = 0;
  rule.gradients = {{GradientSource::From::output_gradient, 0}};
  return rule;
}

}  // namespace

const OpRow op_rows::softcap{.rule = rule_of_softcap};

}  // namespace vramfit
