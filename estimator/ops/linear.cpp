#include "estimator/ops/rules.h"

namespace vramfit {

/// y = x W^T + b. x is read in backward by the weight's gradient alone, so a frozen linear saves nothing; the weight is
/// gathered again and never saved. Both products are written or added into the tape's buffers (mm_out, addmm_): no
/// temporary gradient.
///
/// CUDA: the bias gradient is a product with a row of ones, because a sum over rows would take a reduce buffer that
/// grows with the SM count. CPU: an own column sum.
Rule rule_of_linear(const OpContext& context, const Needs& needs) {
  Rule rule;
  if (wants_parameter(needs, 0)) rule.saved = {input(0)};
  rule.gradients = {{GradientSource::From::fresh, 0}};
  if (is_cuda(context) && wants_parameter(needs, 1)) {
    rule.backward = {temporary("ones", context.tokens(), context.compute())};
  }
  return rule;
}

}  // namespace vramfit
