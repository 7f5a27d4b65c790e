#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// x -> act(x). The derivative is a function of x alone, element by element, so the gradient is written over x once
/// nobody reads it any more. Elementwise kernels need no further memory on either device.
Rule rule_of_activation(const OpContext& /*context*/, const Needs& /*needs*/) {
  Rule rule;
  rule.saved = {input(0)};
  rule.gradients = {{GradientSource::From::saved, 0}};
  return rule;
}

}  // namespace

const OpRow op_rows::activation{.rule = rule_of_activation};

}  // namespace vramfit
