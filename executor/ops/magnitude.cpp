#include "program/ops/magnitude.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/mul.h>

#include "executor/ops/adapter_torch.h"
#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

// Added to the square of a magnitude before it divides by that: where the magnitude is 0, y says nothing about the
// direction that it scales, and its gradient is 0.
constexpr float kLeastSquare = 1e-37F;

bool has_shift(const OpCall& call) { return call.parameters.size() > 1; }

/// x, or y where that was written over it.
const at::Tensor& kept_rows(const OpCall& call) {
  return scales_in_place(call.context) ? call.outputs[0] : call.inputs[0];
}

template <typename T>
void scale_rows(const OpCall& call) {
  const Rows<T> x(call.inputs[0]), y(call.outputs[0]);
  const T *norms = data<T>(call.inputs[1]), *magnitudes = data<T>(call.parameters[0]);
  const T* bias = has_shift(call) ? data<T>(call.parameters[1]) : nullptr;
  parallel_rows(x.count, x.columns, [=](std::int64_t row) {
    const T* from = x[row];
    T* to = y[row];
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < x.columns; ++c) {
      const float factor = static_cast<float>(magnitudes[c]) / static_cast<float>(norms[c]);
      const float shift = bias == nullptr ? 0.0F : static_cast<float>(bias[c]);
      to[c] = static_cast<T>((static_cast<float>(from[c]) - shift) * factor + shift);
    }
  });
}

/// The sum over tokens of dy (x - bias) / norms; of y - bias, which is as many magnitudes over norms.
template <typename T>
void magnitude_gradient(const OpCall& call) {
  const Rows<T> kept(kept_rows(call)), dy(*call.output_gradient);
  const T *norms = data<T>(call.inputs[1]), *magnitudes = data<T>(call.parameters[0]);
  const T* bias = has_shift(call) ? data<T>(call.parameters[1]) : nullptr;
  T* target = data<T>(call.parameter_gradients[0]);
  const bool add = adds_parameter(call, 0), is_scaled = scales_in_place(call.context);
  column_sums(
      kept.count, kept.columns,
      [=](std::int64_t row, std::int64_t c) {
        const float shift = bias == nullptr ? 0.0F : static_cast<float>(bias[c]);
        return static_cast<float>(dy[row][c]) * (static_cast<float>(kept[row][c]) - shift);
      },
      [=](std::int64_t c, float sum) {
        const auto m = static_cast<float>(magnitudes[c]);
        put(target[c], is_scaled ? sum * m / (m * m + kLeastSquare) : sum / static_cast<float>(norms[c]), add);
      });
}

template <typename T>
void scaled_gradient(const OpCall& call) {
  const Rows<T> dy(*call.output_gradient), dx(call.input_gradients[0]);
  const T *norms = data<T>(call.inputs[1]), *magnitudes = data<T>(call.parameters[0]);
  const bool add = adds_input(call, 0);
  parallel_rows(dy.count, dy.columns, [=](std::int64_t row) {
    const T* from = dy[row];
    T* to = dx[row];
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < dy.columns; ++c) {
      const float factor = static_cast<float>(magnitudes[c]) / static_cast<float>(norms[c]);
      put(to[c], static_cast<float>(from[c]) * factor, add);
    }
  });
}

void magnitude_forward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) { scale_rows<decltype(zero)>(call); });
}

void magnitude_backward_cpu(OpCall& call) {
  with_type(call.output_gradient->scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    // First, as dx may be written over dy.
    if (wants_parameter(call, 0)) magnitude_gradient<T>(call);
    if (wants_input(call, 0)) scaled_gradient<T>(call);
  });
}

/// A new tensor [1, O] of magnitudes over norms.
at::Tensor magnitude_factors(OpCall& call) {
  at::Tensor factors = call.temporaries.allocate("factors", {1, call.inputs[1].numel()}, Dtype::f32);
  return factors.copy_(call.inputs[1]).reciprocal_().mul_(call.parameters[0]);
}

void magnitude_forward_cuda(OpCall& call) {
  const at::Tensor factors = magnitude_factors(call);
  if (!has_shift(call)) {
    at::mul_out(call.outputs[0], call.inputs[0], factors);
    return;
  }
  at::Tensor shifts = call.temporaries.allocate("shifts", factors.sizes().vec(), Dtype::f32);
  shifts.copy_(call.parameters[1]).mul_(factors).neg_().add_(call.parameters[1]);
  at::addcmul_out(call.outputs[0], shifts, call.inputs[0], factors);
}

void magnitude_gradient_by_calls(OpCall& call) {
  const at::Tensor& kept = kept_rows(call);
  const std::int64_t part = summed_tokens(kept.size(0), kept.size(1)), width = kept.size(1);
  const at::Tensor rows = call.temporaries.allocate("rows", {part, width}, Dtype::f32);
  const at::Tensor* const shift = has_shift(call) ? &call.parameters[1] : nullptr;
  at::Tensor sums = sums_of_products(call, {.kept = kept, .rows = rows, .shift = shift}).view({1, width});
  if (scales_in_place(call.context)) {
    at::Tensor divisors = rows.narrow(0, 0, 1);
    divisors.copy_(call.parameters[0]);
    sums.mul_(divisors);
    sums.div_(divisors.mul_(divisors).add_(kLeastSquare));
  } else {
    sums.div_(call.inputs[1]);
  }
  at::Tensor& target = call.parameter_gradients[0];
  adds_parameter(call, 0) ? target.add_(sums.view({width})) : target.copy_(sums.view({width}));
}

void magnitude_backward_cuda(OpCall& call) {
  if (wants_parameter(call, 0)) magnitude_gradient_by_calls(call);
  if (!wants_input(call, 0)) return;
  const at::Tensor factors = magnitude_factors(call);
  at::Tensor& target = call.input_gradients[0];
  if (adds_input(call, 0)) {
    target.addcmul_(*call.output_gradient, factors);
  } else {
    at::mul_out(target, *call.output_gradient, factors);
  }
}

}  // namespace

const DeviceFunctions rows::magnitude{.cpu = {magnitude_forward_cpu, magnitude_backward_cpu},
                                      .cuda = {magnitude_forward_cuda, magnitude_backward_cuda}};

}  // namespace vramfit::kernels
