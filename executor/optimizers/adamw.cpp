#include "executor/optimizers/adamw.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>

#include <optional>
#include <vector>

namespace vramfit {

namespace {

std::optional<at::Tensor> optional(const at::Tensor* tensor) {
  return tensor == nullptr ? std::nullopt : std::optional<at::Tensor>(*tensor);
}

/// On CPU a sum with a number would allocate a tensor for the number.
void count_step(const OptimizerCall& call) {
  if (call.step.is_cpu()) {
    *static_cast<float*>(call.step.data_ptr()) += 1.0F;
  } else {
    call.step.add_(1);
  }
}

}  // namespace

void fused_adamw(OptimizerCall& call) {
  count_step(call);
  const std::vector<at::Tensor> parameters{call.parameters}, gradients{call.gradients}, exp_avgs{call.exp_avg},
      exp_avg_sqs{call.exp_avg_sq}, steps{call.step};
  const OptimizerOptions& o = call.options;
  at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, {}, steps, o.learning_rate, o.beta1, o.beta2,
                    o.weight_decay, o.eps, false, false, optional(call.gradient_divisor), optional(call.found_inf));
  if (call.found_inf != nullptr) call.step.sub_(*call.found_inf);  // a step that was skipped isn't counted
}

}  // namespace vramfit
