#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// x + table[0], in place of x: every token is of the first type. The gradient of x is the output's; the table's first
/// row gets the sum over all tokens.
///
/// CPU: an own column sum. CUDA: a product with a row of ones, cast into the gradient.
Rule rule_of_type_embedding(const OpContext& context, const Needs& needs) {
  Rule rule;
  rule.in_place_input = 0;
  rule.gradients = {{GradientSource::From::pass_through, 0}};
  if (is_cuda(context) && wants_parameter(needs, 0)) {
    rule.backward = {temporary("ones", context.tokens(), context.compute()),
                     temporary("sum", context.output_elements(0) / context.tokens(), context.compute())};
  }
  return rule;
}

}  // namespace

const OpRow op_rows::type_embedding{.rule = rule_of_type_embedding, .sums_many = true, .reads_weights_backward = false};

}  // namespace vramfit
