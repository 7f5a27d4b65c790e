// AdamW. Where parameters, gradients and states have one dtype, by LibTorch's fused kernel: one call over a unit's flat
// tensors. Where some have another, which that kernel refuses, an own loop on CPU ranks, and on GPUs an own kernel, or
// that one over chunks in fp32.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>

#include <vector>

#include "executor/optimizers/adam_elements_torch.h"
#include "executor/optimizers/adamw_forms.h"
#include "executor/optimizers/adamw_kernels.h"
#include "executor/optimizers/fp32_chunks_torch.h"

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
void update_by_fused(OptimizerCall& call) {
  const std::vector<at::Tensor> parameters{call.parameters}, gradients{call.gradients}, first{call.states[0]},
      second{call.states[1]}, steps{call.states[2]};
  const OptimizerOptions& o = call.options;
  at::_fused_adamw_(parameters, gradients, first, second, {}, steps, o.learning_rate, o["beta1"], o["beta2"],
                    o["weight-decay"], o["eps"], false, false, optional(call.gradient_divisor),
                    optional(call.found_inf));
}

/// `update` of a step that is counted, unless it is skipped.
template <typename Update>
void in_counted_step(OptimizerCall& call, const Update& update) {
  at::Tensor& step = call.states[2];
  count(step);
  update();
  if (call.found_inf != nullptr) step.sub_(*call.found_inf);
}

void fused_adamw(OptimizerCall& call) {
  in_counted_step(call, [&] { update_by_fused(call); });
}

void adamw_on_cpu(OptimizerCall& call) {
  if (is_of_one_dtype(call)) return fused_adamw(call);
  if (number(call.found_inf, 0) != 0) return;
  count(call.states[2]);
  const AdamNumbers numbers(adam_rates(call.options), static_cast<double>(number(&call.states[2], 0)));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "update_mixed", [&] {
    update_adam_elements<scalar_t>(call, numbers, {.elements = call.parameters.numel()},
                                   [](float x, std::int64_t) { return static_cast<scalar_t>(x); });
  });
}

void adamw_on_cuda(OptimizerCall& call) {
  if (is_of_one_dtype(call)) return fused_adamw(call);
  in_counted_step(call, [&] { update_in_fp32(call, 2, update_by_fused); });
}

void adamw_by_kernel(OptimizerCall& call) { is_of_one_dtype(call) ? fused_adamw(call) : update_plain_by_kernel(call); }

}  // namespace

const OptimizerSteps optimizer_steps::adamw{.cpu = adamw_on_cpu,
                                            .cuda = adamw_on_cuda,
                                            .own_cuda = adamw_by_kernel,
                                            .foreach = adamw_by_lists,
                                            .loop = adamw_by_parameter};

}  // namespace vramfit
