#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// x + f in place of f: the branch's result f has no other reader, whereas the residual x does. Both gradients equal
/// the output's, so neither costs memory.
Rule rule_of_add(const OpContext& /*context*/, const Needs& /*needs*/) {
  Rule rule;
  rule.in_place_input = 1;
  rule.gradients = {{GradientSource::From::pass_through, 0}, {GradientSource::From::pass_through, 0}};
  return rule;
}

/// The sum reads both and writes one. Its gradient serves both inputs, one of them as a copy.
OpWork work_of_add(const OpContext& context, const Needs& needs) {
  return work_of_calls(context, needs, {.passes = 3, .launches = 1}, {.passes = 2, .launches = 1});
}

}  // namespace

const OpRow op_rows::add{.rule = rule_of_add, .work = work_of_add};

}  // namespace vramfit
