// AdamW over bf16 parameters that are rounded stochastically. Whether element i of a parameter is rounded up in a step
// follows from seed, step, parameter and i alone, so neither the mesh nor a resume changes it.
#include <bit>

#include "executor/optimizers/adam_elements_torch.h"
#include "executor/optimizers/adamw_kernels.h"
#include "executor/optimizers/block_adamw_cuda.h"
#include "executor/training/counter_random.h"

namespace vramfit {

namespace {

/// Of the 16 bits that bf16 lacks, a random number of as many carries over with their odds. NaN stays NaN.
at::BFloat16 rounded(float x, std::uint64_t word) {
  constexpr std::uint16_t kNan = 0x7FC0;
  const auto carried = std::bit_cast<std::uint32_t>(x) + static_cast<std::uint32_t>(word >> 48U);
  return {x == x ? static_cast<std::uint16_t>(carried >> 16U) : kNan, at::BFloat16::from_bits()};
}

/// The gaps between parameters are zeros and stay so.
void on_cpu(OptimizerCall& call) {
  if (number(call.found_inf, 0) != 0) return;
  auto& steps = *call.states[2].mutable_data_ptr<float>();
  steps += 1.0F;
  const AdamNumbers numbers(adam_rates(call.options), static_cast<double>(steps));
  for (const RandomStretch& stretch : call.stretches) {
    update_adam_elements<at::BFloat16>(call, numbers, {stretch.offset, stretch.elements}, [&](float x, std::int64_t i) {
      return rounded(x, random_word(stretch.key, static_cast<std::uint64_t>(stretch.first + i)));
    });
  }
}

void on_cuda(OptimizerCall& call) { update_chunks_on_cuda(call); }

}  // namespace

const OptimizerSteps optimizer_steps::adamw_stochastic{
    .cpu = on_cpu, .cuda = on_cuda, .own_cuda = update_rounding_by_kernel, .draws = true};

}  // namespace vramfit
