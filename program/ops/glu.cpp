#include "program/ops/rules.h"

namespace vramfit {

namespace {

/// act(gate) * up. act(gate) is recomputed in backward, where PyTorch's autograd would save it. Each gradient depends
/// on gate, up and the output's gradient at its own element only, so they are written over gate and up.
///
/// CPU and own kernels: one fused loop reads both before it writes both. CUDA has no such call in ATen: d act = g * up
/// goes to a temporary, then up becomes act(gate) * g, then gate becomes act_backward(d act, gate).
Rule rule_of_glu(const OpContext& context, const Needs& /*needs*/) {
  Rule rule;
  rule.saved = {input(0), input(1)};
  rule.gradients = {{GradientSource::From::saved, 0}, {GradientSource::From::saved, 1}};
  if (is_cuda(context) && !uses_own_kernel(context)) {
    rule.backward = {temporary("activation_gradient", context.input_elements(0), context.compute())};
  }
  return rule;
}

/// CUDA: act(gate) reads and writes, its product with up reads two and writes. Backward: dy up (3), act(gate) again (2)
/// and its product with dy (3), the derivative (3), and its copy to the gate's gradient (2).
OpWork work_of_glu(const OpContext& context, const Needs& needs) {
  if (uses_own_kernel(context)) {
    return work_of_calls(context, needs, {.passes = 3, .launches = 1}, {.passes = 5, .launches = 1});
  }
  return work_of_calls(context, needs, {.passes = 5, .launches = 2}, {.passes = 13, .launches = 5});
}

}  // namespace

const OpRow op_rows::glu{.rule = rule_of_glu, .work = work_of_glu, .has_own_kernel = true};

}  // namespace vramfit
