// SGD with momentum: an own loop on CPU ranks, LibTorch's fused kernel on GPUs.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sgd.h>

#include <type_traits>
#include <vector>

#include "executor/optimizers/elements_torch.h"
#include "executor/optimizers/fp32_chunks_torch.h"

namespace vramfit {

namespace {

/// LibTorch 2.11's fused kernel leaves most 16-bit parameters unchanged on CPU
/// (github.com/pytorch/pytorch/issues/191763).
void sgd_on_cpu(OptimizerCall& call) {
  const OptimizerOptions& o = call.options;
  const auto rate = static_cast<float>(o.learning_rate), momentum = static_cast<float>(o["momentum"]),
             decay = static_cast<float>(o["weight-decay"]);
  update_elements(call, [=](auto& parameter, float gradient, auto& buffer) {
    using T = std::decay_t<decltype(parameter)>;
    const auto p = static_cast<float>(parameter);
    const float moved = momentum * static_cast<float>(buffer) + (gradient + decay * p);
    buffer = static_cast<T>(moved);
    parameter = static_cast<T>(p - rate * moved);
  });
}

/// Never told that a step is the first one: a buffer of zeros gives what the kernel would compute then, also when the
/// steps before were skipped. Without momentum the kernel takes no buffer.
void fused_sgd(OptimizerCall& call) {
  constexpr double kDampening = 0;
  constexpr bool kNesterov = false, kMaximize = false, kIsFirst = false;
  const OptimizerOptions& o = call.options;
  const double momentum = o["momentum"];
  const std::vector<at::Tensor> parameters{call.parameters}, gradients{call.gradients};
  const std::vector<at::Tensor> buffers = momentum == 0 ? std::vector<at::Tensor>{} : call.states;
  at::_fused_sgd_(parameters, gradients, buffers, o["weight-decay"], momentum, o.learning_rate, kDampening, kNesterov,
                  kMaximize, kIsFirst, optional(call.gradient_divisor), optional(call.found_inf));
}

void sgd_on_cuda(OptimizerCall& call) { is_of_one_dtype(call) ? fused_sgd(call) : update_in_fp32(call, 1, fused_sgd); }

}  // namespace

const OptimizerSteps optimizer_steps::sgd{.cpu = sgd_on_cpu, .cuda = sgd_on_cuda};

}  // namespace vramfit
