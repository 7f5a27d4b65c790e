#include "executor/optimizers/adamw.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>

#include <optional>
#include <vector>

namespace vramfit {

void fused_adamw(OptimizerCall& call) {
  // On CPU a sum with a number would allocate a tensor for the number.
  if (call.step.is_cpu()) {
    *static_cast<float*>(call.step.data_ptr()) += 1.0F;
  } else {
    call.step.add_(1);
  }
  const std::vector<at::Tensor> parameters{call.parameters}, gradients{call.gradients}, exp_avgs{call.exp_avg},
      exp_avg_sqs{call.exp_avg_sq}, steps{call.step};
  const OptimizerOptions& o = call.options;
  const std::optional<at::Tensor> divisor =
      call.gradient_divisor == nullptr ? std::nullopt : std::optional<at::Tensor>(*call.gradient_divisor);
  at::_fused_adamw_(parameters, gradients, exp_avgs, exp_avg_sqs, {}, steps, o.learning_rate, o.beta1, o.beta2,
                    o.weight_decay, o.eps, false, false, divisor, std::nullopt);
}

}  // namespace vramfit
