// AdamW. Where parameters, gradients and states have one dtype, by LibTorch's fused kernel: one call over a unit's flat
// tensors. Where states have another, which that kernel refuses, an own loop on CPU ranks and chunks on GPUs.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>

#include <vector>

#include "executor/optimizers/adam_numbers.h"
#include "executor/optimizers/block_adamw_cuda.h"
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

/// Each element once, in fp32 in between.
template <typename Number, typename State>
void update_mixed(OptimizerCall& call, const AdamNumbers& numbers) {
  constexpr std::int64_t kGrain = 16384;  // elements that a thread takes at least
  const float divisor = number(call.gradient_divisor, 1);
  auto* const parameters = call.parameters.mutable_data_ptr<Number>();
  const auto* const gradients = call.gradients.const_data_ptr<Number>();
  auto* const first = call.states[0].mutable_data_ptr<State>();
  auto* const second = call.states[1].mutable_data_ptr<State>();
  at::parallel_for(0, call.parameters.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    kernels::on_widest([&] {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = begin; i < end; ++i) {
        const float gradient = static_cast<float>(gradients[i]) / divisor;
        const float m = numbers.first(static_cast<float>(first[i]), gradient);
        const float v = numbers.second(static_cast<float>(second[i]), gradient);
        parameters[i] = static_cast<Number>(numbers.parameter(static_cast<float>(parameters[i]), m, v));
        first[i] = static_cast<State>(m);
        second[i] = static_cast<State>(v);
      }
    });
  });
}

void adamw_on_cpu(OptimizerCall& call) {
  if (is_of_one_dtype(call)) return fused_adamw(call);
  if (number(call.found_inf, 0) != 0) return;
  count(call.states[2]);
  const AdamNumbers numbers(call.options, static_cast<double>(number(&call.states[2], 0)));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "update_mixed", [&] {
    if (call.states[0].scalar_type() == at::kFloat) {
      update_mixed<scalar_t, float>(call, numbers);
    } else {
      update_mixed<scalar_t, at::BFloat16>(call, numbers);
    }
  });
}

void adamw_on_cuda(OptimizerCall& call) { is_of_one_dtype(call) ? fused_adamw(call) : update_chunks_on_cuda(call); }

}  // namespace

const OptimizerSteps optimizer_steps::adamw{.cpu = adamw_on_cpu, .cuda = adamw_on_cuda};

}  // namespace vramfit
