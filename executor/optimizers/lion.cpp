// Lion: with c = beta1 m + (1 - beta1) g, parameters lose lr (sign(c) + decay p) and m becomes beta2 m + (1 - beta2) g.
#include <ATen/core/Tensor.h>

#include <type_traits>

#include "executor/optimizers/elements_torch.h"
#include "executor/optimizers/fp32_chunks_torch.h"

namespace vramfit {

namespace {

void lion_on_cpu(OptimizerCall& call) {
  const OptimizerOptions& o = call.options;
  const auto rate = static_cast<float>(o.learning_rate), decay = static_cast<float>(o["weight-decay"]),
             beta1 = static_cast<float>(o["beta1"]), beta2 = static_cast<float>(o["beta2"]);
  update_elements(call, [=](auto& parameter, float gradient, auto& average) {
    using T = std::decay_t<decltype(parameter)>;
    const auto p = static_cast<float>(parameter), m = static_cast<float>(average);
    const float c = beta1 * m + (1 - beta1) * gradient;
    const float sign = static_cast<float>(c > 0) - static_cast<float>(c < 0);
    parameter = static_cast<T>(p - rate * (sign + decay * p));
    average = static_cast<T>(beta2 * m + (1 - beta2) * gradient);
  });
}

/// In place, and nothing is read by the host. With d = g - m in the gradient's place, the new m is m + (1 - beta2) d
/// and c is that m + (beta2 - beta1) d. Where a gradient overflowed, d and what parameters lose are multiplied by 0.
void lion_by_calls(OptimizerCall& call) {
  const OptimizerOptions& o = call.options;
  at::Tensor &d = call.gradients, &m = call.states[0];
  const auto nothing_if_skipped = [&] {
    if (call.found_inf != nullptr) d.addcmul_(d, *call.found_inf, -1);
  };
  if (call.gradient_divisor != nullptr) d.div_(*call.gradient_divisor);
  if (call.found_inf != nullptr) d.nan_to_num_(0, 0, 0);
  d.sub_(m);
  nothing_if_skipped();
  m.add_(d, 1 - o["beta2"]);
  d.mul_(o["beta2"] - o["beta1"]).add_(m).sign_().add_(call.parameters, o["weight-decay"]);
  nothing_if_skipped();
  call.parameters.sub_(d, o.learning_rate);
}

void lion_on_cuda(OptimizerCall& call) {
  is_of_one_dtype(call) ? lion_by_calls(call) : update_in_fp32(call, 1, lion_by_calls);
}

}  // namespace

const OptimizerSteps optimizer_steps::lion{.cpu = lion_on_cpu, .cuda = lion_on_cuda};

}  // namespace vramfit
