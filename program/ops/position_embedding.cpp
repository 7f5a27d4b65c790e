#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// x + table[position], in place of x. The gradient of x is the output's; the table's is its sum over sequences, added
/// sequence by sequence (add_ across dtypes takes no temporary).
Rule rule_of_position_embedding(const OpContext& /*context*/, const Needs& /*needs*/) {
  Rule rule;
  rule.in_place_input = 0;
  rule.gradients = {{GradientSource::From::pass_through, 0}};
  return rule;
}

}  // namespace

const OpRow op_rows::position_embedding{
    .rule = rule_of_position_embedding, .sums_many = true, .reads_weights_backward = false};

}  // namespace vramfit
