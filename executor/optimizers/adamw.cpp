// AdamW by LibTorch's fused kernel: one call over a unit's flat tensors.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>

#include <vector>

#include "executor/optimizers/elements_torch.h"

namespace vramfit {

namespace {

/// On CPU a sum with a number would allocate a tensor for the number.
void count(at::Tensor& step) {
  if (step.is_cpu()) {
    *static_cast<float*>(step.data_ptr()) += 1.0F;
  } else {
    step.add_(1);
  }
}

/// The kernel takes one dtype only (LibTorch throws), and allocates nothing on either device.
void fused_adamw(OptimizerCall& call) {
  at::Tensor& step = call.states[2];
  count(step);
  const std::vector<at::Tensor> parameters{call.parameters}, gradients{call.gradients}, exp_avgs{call.states[0]},
      exp_avg_sqs{call.states[1]}, steps{step};
  const OptimizerOptions& o = call.options;
  at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, {}, steps, o.learning_rate, o["beta1"], o["beta2"],
                    o["weight-decay"], o["eps"], false, false, optional(call.gradient_divisor),
                    optional(call.found_inf));
  if (call.found_inf != nullptr) step.sub_(*call.found_inf);  // a step that was skipped isn't counted
}

}  // namespace

const OptimizerSteps optimizer_steps::adamw{.cpu = fused_adamw, .cuda = fused_adamw};

}  // namespace vramfit
