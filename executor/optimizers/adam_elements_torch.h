// CPU ranks: AdamW's update of elements whose parameters, gradients and states have a dtype each.
#pragma once

#include <cstdint>

#include "executor/optimizers/adam_numbers.h"
#include "executor/optimizers/elements_torch.h"

namespace vramfit {

/// Of a unit's flat tensors.
struct AdamStretch {
  std::int64_t offset = 0, elements = 0;
};

template <typename Number, typename State, typename Gradient, typename Round>
void update_adam_stretch(OptimizerCall& call, const Gradient* all_gradients, const AdamNumbers& numbers,
                         const AdamStretch& stretch, const Round& round) {
  constexpr std::int64_t kGrain = 16384;  // elements that a thread takes at least
  const auto& [offset, elements] = stretch;
  const float divisor = number(call.gradient_divisor, 1);
  auto* const parameters = call.parameters.mutable_data_ptr<Number>() + offset;
  const auto* const gradients = all_gradients + offset;
  auto* const first = call.states[0].mutable_data_ptr<State>() + offset;
  auto* const second = call.states[1].mutable_data_ptr<State>() + offset;
  at::parallel_for(0, elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
    kernels::on_widest([&] {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = begin; i < end; ++i) {
        const float gradient = static_cast<float>(gradients[i]) / divisor;
        const float m = numbers.first(static_cast<float>(first[i]), gradient);
        const float v = numbers.second(static_cast<float>(second[i]), gradient);
        parameters[i] = round(numbers.parameter(static_cast<float>(parameters[i]), m, v), i);
        first[i] = static_cast<State>(m);
        second[i] = static_cast<State>(v);
      }
    });
  });
}

/// Updates a stretch's elements, each once, in fp32 in between. round(x, i) is what parameter i of them keeps of the
/// fp32 number x. States are fp32 or bf16.
template <typename Number, typename Round>
void update_adam_elements(OptimizerCall& call, const AdamNumbers& numbers, const AdamStretch& stretch,
                          const Round& round) {
  with_gradients(call, [&](const auto* gradients) {
    if (call.states[0].scalar_type() == at::kFloat) {
      update_adam_stretch<Number, float>(call, gradients, numbers, stretch, round);
    } else {
      update_adam_stretch<Number, at::BFloat16>(call, gradients, numbers, stretch, round);
    }
  });
}

}  // namespace vramfit
