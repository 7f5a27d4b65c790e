// AdamW over bf16 parameters that are rounded stochastically. Whether element i of a parameter is rounded up in a step
// follows from seed, step, parameter and i alone, so neither the mesh nor a resume changes it.
#include <bit>

#include "executor/optimizers/adam_numbers.h"
#include "executor/optimizers/block_adamw_cuda.h"
#include "executor/optimizers/elements_torch.h"
#include "executor/training/counter_random.h"

namespace vramfit {

namespace {

/// Of the 16 bits that bf16 lacks, a random number of as many carries over with their odds. NaN stays NaN.
at::BFloat16 rounded(float x, std::uint64_t word) {
  constexpr std::uint16_t kNan = 0x7FC0;
  const auto carried = std::bit_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(word >> 48U);
  return {x == x ? static_cast<std::uint16_t>(carried >> 16U) : kNan, at::BFloat16::from_bits()};
}

template <typename State>
void update_stretch(OptimizerCall& call, const AdamNumbers& numbers, const RandomStretch& stretch) {
  constexpr std::int64_t kGrain = 16384;  // elements that a thread takes at least
  const float divisor = number(call.gradient_divisor, 1);
  auto* const parameters = call.parameters.mutable_data_ptr<at::BFloat16>() + stretch.offset;
  const auto* const gradients = call.gradients.const_data_ptr<at::BFloat16>() + stretch.offset;
  auto* const first = call.states[0].mutable_data_ptr<State>() + stretch.offset;
  auto* const second = call.states[1].mutable_data_ptr<State>() + stretch.offset;
  at::parallel_for(0, stretch.elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
    kernels::on_widest([&] {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = begin; i < end; ++i) {
        const float gradient = static_cast<float>(gradients[i]) / divisor;
        const float m = numbers.first(static_cast<float>(first[i]), gradient);
        const float v = numbers.second(static_cast<float>(second[i]), gradient);
        const std::uint64_t word = random_word(stretch.key, static_cast<std::uint64_t>(stretch.first + i));
        parameters[i] = rounded(numbers.parameter(static_cast<float>(parameters[i]), m, v), word);
        first[i] = static_cast<State>(m);
        second[i] = static_cast<State>(v);
      }
    });
  });
}

/// The gaps between parameters are zeros and stay so.
void on_cpu(OptimizerCall& call) {
  if (number(call.found_inf, 0) != 0) return;
  auto& steps = *call.states[2].mutable_data_ptr<float>();
  steps += 1.0F;
  const AdamNumbers numbers(call.options, static_cast<double>(steps));
  for (const RandomStretch& stretch : call.stretches) {
    if (call.states[0].scalar_type() == at::kFloat) {
      update_stretch<float>(call, numbers, stretch);
    } else {
      update_stretch<at::BFloat16>(call, numbers, stretch);
    }
  }
}

void on_cuda(OptimizerCall& call) { update_chunks_on_cuda(call); }

}  // namespace

const OptimizerSteps optimizer_steps::adamw_stochastic{.cpu = on_cpu, .cuda = on_cuda, .draws = true};

}  // namespace vramfit
