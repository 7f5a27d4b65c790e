// AdamW. Where parameters, gradients and states have one dtype, by LibTorch's fused kernel: one call over a unit's flat
// tensors. Where states have another, which that kernel refuses, an own loop on CPU ranks, and on GPUs chunks or an own
// kernel.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>

#include <cstdint>
#include <vector>

#include "executor/optimizers/adam_elements_torch.h"
#include "executor/optimizers/adamw_forms.h"
#include "executor/optimizers/adamw_kernels.h"
#include "executor/optimizers/block_adamw_cuda.h"

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

/// It allocates nothing on either device.
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

bool is_of_one_dtype(const OptimizerCall& call) {
  return call.states[0].scalar_type() == call.parameters.scalar_type();
}

void adamw_on_cpu(OptimizerCall& call) {
  if (is_of_one_dtype(call)) return fused_adamw(call);
  if (number(call.found_inf, 0) != 0) return;
  count(call.states[2]);
  const AdamNumbers numbers(adam_rates(call.options), static_cast<double>(number(&call.states[2], 0)));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "update_mixed", [&] {
    update_adam_elements<scalar_t>(call, numbers, 0, call.parameters.numel(),
                                   [](float x, std::int64_t) { return static_cast<scalar_t>(x); });
  });
}

void adamw_on_cuda(OptimizerCall& call) { is_of_one_dtype(call) ? fused_adamw(call) : update_chunks_on_cuda(call); }

void adamw_by_kernel(OptimizerCall& call) { is_of_one_dtype(call) ? fused_adamw(call) : update_plain_by_kernel(call); }

}  // namespace

const OptimizerSteps optimizer_steps::adamw{.cpu = adamw_on_cpu,
                                            .cuda = adamw_on_cuda,
                                            .own_cuda = adamw_by_kernel,
                                            .foreach = adamw_by_lists,
                                            .loop = adamw_by_parameter};

}  // namespace vramfit
