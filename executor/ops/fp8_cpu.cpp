#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <cmath>

#include "executor/ops/fp8_torch.h"
#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/fp8.h"
#include "program/ops/rules.h"

namespace vramfit::kernels {

namespace {

/// The largest magnitude; NaN if one is there.
template <typename T>
float largest_of(const Rows<T>& values) {
  const auto larger = [](float a, float b) { return std::isnan(a) || a > b ? a : b; };
  return at::parallel_reduce(
      0, values.count, rows_grain(values.columns), 0.0F,
      [&](std::int64_t begin, std::int64_t end, float found) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* from = values[row];
          for (std::int64_t c = 0; c < values.columns; ++c) {
            found = larger(std::abs(static_cast<float>(from[c])), found);
          }
        }
        return found;
      },
      larger);
}

/// A factor rounded to FP8, in `buffer`, and what its numbers are to be multiplied by afterwards.
struct Factor {
  Matrix values;
  float inverse = 1;
};

// No scaled number exceeds the format's largest by more than rounding, so nothing is clamped.
template <typename Format>
Factor round_to(const at::Tensor& factor, double largest, const at::Tensor& buffer) {
  const at::Tensor rounded = buffer.narrow(0, 0, factor.numel()).view(factor.sizes());
  Factor result{.values = matrix(rounded)};
  with_type(factor.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> from(factor), to(rounded);
    const auto most = static_cast<float>(largest / kLeastAmax);
    float scale = static_cast<float>(largest) / largest_of(from);
    if (scale > most) scale = most;
    result.inverse = 1.0F / scale;
    parallel_rows(from.count, from.columns, [&](std::int64_t row) {
      const T* source = from[row];
      T* target = to[row];
      for (std::int64_t c = 0; c < from.columns; ++c) {
        target[c] = static_cast<T>(static_cast<float>(Format(static_cast<float>(source[c]) * scale)));
      }
    });
  });
  return result;
}

Factor round_e4m3(const at::Tensor& factor, const at::Tensor& buffer) {
  return round_to<c10::Float8_e4m3fn>(factor, kLargestE4m3, buffer);
}

at::Tensor make_buffer(OpCall& call, const char* name, std::int64_t elements) {
  return call.temporaries.allocate(name, {elements}, call.context.compute());
}

}  // namespace

void fp8_forward_cpu(OpCall& call) {
  const at::Tensor &x = call.inputs[0], &weight = call.parameters[0];
  const Matrix y = matrix(call.outputs[0]);
  const at::Tensor x_buffer = make_buffer(call, "x_fp8", x.numel());
  const at::Tensor weight_buffer = make_buffer(call, "weight_fp8", weight.numel());
  const at::Tensor product = call.temporaries.allocate("product", {linear_forward_scratch(call.context)}, Dtype::f32);
  const Factor a = round_e4m3(x, x_buffer), b = round_e4m3(weight, weight_buffer);
  multiply(a.values, transpose(b.values), y,
           {.bias = call.parameters.size() > 1 ? call.parameters[1].data_ptr() : nullptr,
            .product = data<float>(product),
            .factor = a.inverse * b.inverse});
}

void fp8_backward_cpu(OpCall& call) {
  const at::Tensor &dy = *call.output_gradient, &weight = call.parameters[0];
  const bool wants_x = wants_input(call, 0), wants_weight = wants_parameter(call, 0);
  if (!wants_x && !wants_weight) return;
  const at::Tensor dy_buffer = make_buffer(call, "dy_fp8", dy.numel());
  const at::Tensor buffer = make_buffer(
      call, "factor_fp8", std::max(wants_x ? weight.numel() : 0, wants_weight ? call.inputs[0].numel() : 0));
  const at::Tensor product =
      call.temporaries.allocate("product", {linear_backward_scratch(call.context, wants_x, wants_weight)}, Dtype::f32);
  const Factor a = round_to<c10::Float8_e5m2>(dy, kLargestE5m2, dy_buffer);
  if (wants_x) {
    const Factor b = round_e4m3(weight, buffer);
    multiply(a.values, b.values, matrix(call.input_gradients[0]),
             {.add = adds_input(call, 0), .product = data<float>(product), .factor = a.inverse * b.inverse});
  }
  if (wants_weight) {
    const Factor b = round_e4m3(call.inputs[0], buffer);
    multiply(transpose(a.values), b.values, matrix(call.parameter_gradients[0]),
             {.add = adds_parameter(call, 0), .product = data<float>(product), .factor = a.inverse * b.inverse});
  }
}

}  // namespace vramfit::kernels
