#include "estimator/ops/rules.h"

namespace vramfit {

/// x + f in place of f: the branch's result has no other reader, the residual x has. Both gradients are the output's,
/// unchanged, so neither costs memory.
Rule rule_of_add(const OpContext& /*context*/, const Needs& /*needs*/) {
  Rule rule;
  rule.in_place_input = 1;
  rule.gradients = {{GradientSource::From::pass_through, 0}, {GradientSource::From::pass_through, 0}};
  return rule;
}

}  // namespace vramfit
