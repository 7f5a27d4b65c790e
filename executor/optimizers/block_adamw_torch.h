// AdamW whose averages are codes in blocks, on CPU ranks: each block is decoded, updated and encoded again in registers
// and on the stack.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "executor/optimizers/adam_numbers.h"
#include "executor/optimizers/block_codes.h"
#include "executor/optimizers/elements_torch.h"

namespace vramfit {

/// The states of a unit, as its row has them.
struct BlockAverages {
  std::uint8_t *first_codes, *second_codes;
  float *first_scales, *second_scales;
};

template <typename First, typename Second, std::int64_t kBlock, typename T, typename Gradient>
void update_block(const AdamNumbers& numbers, const BlockAverages& states, std::int64_t block, float divisor,
                  T* parameters, const Gradient* gradients) {
  alignas(64) std::array<float, kBlock> m, v;
  std::uint8_t* const first = states.first_codes + block * (kBlock / First::kPerByte);
  std::uint8_t* const second = states.second_codes + block * (kBlock / Second::kPerByte);
  decode_block<First, kBlock>(first, states.first_scales[block], m.data());
  decode_block<Second, kBlock>(second, states.second_scales[block], v.data());
  T* const p = parameters + block * kBlock;
  const Gradient* const g = gradients + block * kBlock;
  VRAMFIT_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < kBlock; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const float gradient = static_cast<float>(g[i]) / divisor;
    m[at] = numbers.first(m[at], gradient);
    v[at] = numbers.second(v[at], gradient);
    p[i] = static_cast<T>(numbers.parameter(static_cast<float>(p[i]), m[at], v[at]));
  }
  states.first_scales[block] = encode_block<First, kBlock>(m.data(), first);
  states.second_scales[block] = encode_block<Second, kBlock>(v.data(), second);
}

/// States: codes of the first and second moment, their scales, the count.
template <typename First, typename Second, std::int64_t kBlock>
void update_blocks(OptimizerCall& call) {
  constexpr std::int64_t kGrain = 16384 / kBlock;  // blocks that a thread takes at least
  if (number(call.found_inf, 0) != 0) return;
  const float divisor = number(call.gradient_divisor, 1);
  auto& steps = *call.states[4].mutable_data_ptr<float>();
  steps += 1.0F;
  const AdamNumbers numbers(adam_rates(call.options), static_cast<double>(steps));
  const BlockAverages states{.first_codes = call.states[0].mutable_data_ptr<std::uint8_t>(),
                             .second_codes = call.states[1].mutable_data_ptr<std::uint8_t>(),
                             .first_scales = call.states[2].mutable_data_ptr<float>(),
                             .second_scales = call.states[3].mutable_data_ptr<float>()};
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "update_blocks", [&] {
    auto* const parameters = call.parameters.mutable_data_ptr<scalar_t>();
    with_gradients(call, [&](const auto* gradients) {
      at::parallel_for(0, call.parameters.numel() / kBlock, kGrain, [&](std::int64_t begin, std::int64_t end) {
        kernels::on_widest([&] {
          for (std::int64_t b = begin; b < end; ++b) {
            update_block<First, Second, kBlock>(numbers, states, b, divisor, parameters, gradients);
          }
        });
      });
    });
  });
}

}  // namespace vramfit
