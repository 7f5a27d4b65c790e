// AdamW with averages in e4m3 and fp16, a scale for each tensor, on CPU ranks: a loop that finds the largest averages
// of a parameter, and one that updates it. What averages are is computed in both, so nothing is kept in between.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>

#include "executor/ops/e4m3.h"
#include "executor/optimizers/adam_numbers.h"
#include "executor/optimizers/adamw_fp8_cuda.h"
#include "executor/optimizers/adamw_kernels.h"
#include "executor/optimizers/elements_torch.h"
#include "executor/optimizers/tensor_scales.h"

namespace vramfit {

namespace {

constexpr std::int64_t kGrain = 16384;  // elements that a thread takes at least

struct Scales {
  float first, second;
};

/// Bits of magnitudes, which are ordered as the magnitudes are.
class Largest {
 public:
  void add(std::int32_t bits) {
    std::int32_t before = bits_.load();
    while (before < bits && !bits_.compare_exchange_weak(before, bits)) {
    }
  }
  float value() const { return std::bit_cast<float>(bits_.load()); }

 private:
  std::atomic<std::int32_t> bits_ = 0;
};

/// A parameter's numbers.
template <typename Number, typename Gradient>
struct Stretch {
  Number* parameters;
  const Gradient* gradients;
  std::uint8_t* codes;
  at::Half* halves;
  Scales scales;  // so far
  float divisor;

  float gradient(std::int64_t i) const { return static_cast<float>(gradients[i]) / divisor; }
  float first(const AdamNumbers& numbers, std::int64_t i) const {
    return numbers.first(E4m3::value(codes[i]) * scales.first, gradient(i));
  }
  float second(const AdamNumbers& numbers, std::int64_t i) const {
    return numbers.second(static_cast<float>(halves[i]) * scales.second, gradient(i));
  }
};

std::int32_t bits_of_size(float x) { return std::bit_cast<std::int32_t>(std::fabs(x)); }

template <typename Number, typename Gradient>
Scales find_scales(const Stretch<Number, Gradient>& p, const AdamNumbers& numbers, std::int64_t elements) {
  Largest first, second;
  at::parallel_for(0, elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::int32_t of_first = 0, of_second = 0;
    kernels::on_widest([&] {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = begin; i < end; ++i) {
        of_first = std::max(of_first, bits_of_size(p.first(numbers, i)));
        of_second = std::max(of_second, bits_of_size(p.second(numbers, i)));
      }
    });
    first.add(of_first);
    second.add(of_second);
  });
  return {scale_of(first.value(), kE4m3Format), scale_of(second.value(), kF16Format)};
}

template <typename Number, typename Gradient>
void update_stretch(const Stretch<Number, Gradient>& p, const AdamNumbers& numbers, std::int64_t elements,
                    const Scales& scales) {
  const float of_first = 1 / scales.first, of_second = 1 / scales.second;  // powers of two
  at::parallel_for(0, elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
    kernels::on_widest([&] {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = begin; i < end; ++i) {
        const float m = p.first(numbers, i), v = p.second(numbers, i);
        p.parameters[i] = static_cast<Number>(numbers.parameter(static_cast<float>(p.parameters[i]), m, v));
        p.codes[i] = static_cast<std::uint8_t>(E4m3::code(m * of_first));
        p.halves[i] = static_cast<at::Half>(v > 0 ? std::max(v * of_second, kLeastF16) : v);
      }
    });
  });
}

template <typename Number, typename Gradient>
void update_each(OptimizerCall& call, const Gradient* gradients, const AdamNumbers& numbers) {
  auto* first = call.states[2].mutable_data_ptr<float>();
  auto* second = call.states[3].mutable_data_ptr<float>();
  for (const ParameterRows& rows : call.rows) {
    const Stretch<Number, Gradient> p{.parameters = call.parameters.mutable_data_ptr<Number>() + rows.offset,
                                      .gradients = gradients + rows.offset,
                                      .codes = call.states[0].mutable_data_ptr<std::uint8_t>() + rows.offset,
                                      .halves = call.states[1].mutable_data_ptr<at::Half>() + rows.offset,
                                      .scales = {*first, *second},
                                      .divisor = number(call.gradient_divisor, 1)};
    const std::int64_t elements = checked_mul(rows.held_rows, rows.columns);
    const Scales scales = find_scales(p, numbers, elements);
    update_stretch(p, numbers, elements, scales);
    *first++ = scales.first;
    *second++ = scales.second;
  }
}

void adamw_fp8_on_cpu(OptimizerCall& call) {
  if (number(call.found_inf, 0) != 0) return;
  auto& steps = *call.states[4].mutable_data_ptr<float>();
  steps += 1.0F;
  const AdamNumbers numbers(adam_rates(call.options), static_cast<double>(steps));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, call.parameters.scalar_type(), "update_fp8", [&] {
    with_gradients(call, [&](const auto* gradients) { update_each<scalar_t>(call, gradients, numbers); });
  });
}

}  // namespace

const OptimizerSteps optimizer_steps::adamw_fp8{
    .cpu = adamw_fp8_on_cpu, .cuda = adamw_fp8_on_cuda, .own_cuda = update_scaled_by_kernel};

}  // namespace vramfit
