#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>

#include <cmath>
#include <tuple>

#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

template <typename T>
void layer_norm_rows(OpCall& call) {
  const Rows<T> x(call.inputs[0]), y(call.outputs[0]);
  const T *weight = data<T>(call.parameters[0]), *bias = data<T>(call.parameters[1]);
  auto *mean = data<float>(call.outputs[1]), *rstd = data<float>(call.outputs[2]);
  const auto eps = static_cast<float>(attributes(call).eps), n = static_cast<float>(x.columns);
  parallel_rows(x.count, x.columns, [=](std::int64_t row) {
    const T* from = x[row];
    T* to = y[row];
    const float m = row_sum(x.columns, [=](std::int64_t c) { return static_cast<float>(from[c]); }) / n;
    const float squares = row_sum(x.columns, [=](std::int64_t c) {
      const float d = static_cast<float>(from[c]) - m;
      return d * d;
    });
    const float r = 1.0F / std::sqrt(squares / n + eps);
    mean[row] = m;
    rstd[row] = r;
    for (std::int64_t c = 0; c < x.columns; ++c) {
      to[c] = static_cast<T>((static_cast<float>(from[c]) - m) * r * static_cast<float>(weight[c]) +
                             static_cast<float>(bias[c]));
    }
  });
}

/// dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy * weight, xhat = (x - mean) rstd.
template <typename T>
void layer_norm_input_gradient(OpCall& call) {
  const Rows<T> x(call.inputs[0]), dy(*call.output_gradient), dx(call.input_gradients[0]);
  const T* weight = data<T>(call.parameters[0]);
  const auto *mean = data<float>(call.outputs[1]), *rstd = data<float>(call.outputs[2]);
  const bool add = adds_input(call, 0);
  const auto n = static_cast<float>(x.columns);
  parallel_rows(x.count, x.columns, [=](std::int64_t row) {
    const T *from = x[row], *gradient = dy[row];
    T* to = dx[row];
    const float m = mean[row], r = rstd[row];
    const auto weighted = [=](std::int64_t c) {
      return static_cast<float>(gradient[c]) * static_cast<float>(weight[c]);
    };
    const float mean_g = row_sum(x.columns, weighted) / n;
    const float mean_gx =
        row_sum(x.columns, [=](std::int64_t c) { return weighted(c) * (static_cast<float>(from[c]) - m) * r; }) / n;
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < x.columns; ++c) {
      const float xhat = (static_cast<float>(from[c]) - m) * r;
      put(to[c], r * (weighted(c) - mean_g - xhat * mean_gx), add);
    }
  });
}

template <typename T>
void parameter_gradients(OpCall& call) {
  const Rows<T> x(call.inputs[0]), dy(*call.output_gradient);
  const auto *mean = data<float>(call.outputs[1]), *rstd = data<float>(call.outputs[2]);
  if (wants_parameter(call, 0)) {
    T* target = data<T>(call.parameter_gradients[0]);
    const bool add = adds_parameter(call, 0);
    column_sums(
        x.count, x.columns,
        [=](std::int64_t row, std::int64_t c) {
          return static_cast<float>(dy[row][c]) * (static_cast<float>(x[row][c]) - mean[row]) * rstd[row];
        },
        [=](std::int64_t c, float sum) { put(target[c], sum, add); });
  }
  if (wants_parameter(call, 1)) {
    T* target = data<T>(call.parameter_gradients[1]);
    const bool add = adds_parameter(call, 1);
    column_sums(
        x.count, x.columns, [=](std::int64_t row, std::int64_t c) { return static_cast<float>(dy[row][c]); },
        [=](std::int64_t c, float sum) { put(target[c], sum, add); });
  }
}

void layer_norm_forward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) { layer_norm_rows<decltype(zero)>(call); });
}

void layer_norm_backward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    parameter_gradients<T>(call);
    if (wants_input(call, 0)) layer_norm_input_gradient<T>(call);
  });
}

// The call makes y and the statistics itself (Rule::outputs_inside).
void layer_norm_forward_cuda(OpCall& call) {
  std::tie(call.outputs[0], call.outputs[1], call.outputs[2]) = at::native_layer_norm(
      call.inputs[0], {call.inputs[0].size(1)}, call.parameters[0], call.parameters[1], attributes(call).eps);
  for (std::size_t i : {std::size_t{1}, std::size_t{2}}) call.outputs[i] = call.outputs[i].flatten();
}

void store(at::Tensor& target, const at::Tensor& value, bool add) { add ? target.add_(value) : target.copy_(value); }

void layer_norm_backward_cuda(OpCall& call) {
  const std::int64_t rows = call.inputs[0].size(0);
  auto [dx, dw, db] = at::native_layer_norm_backward(
      *call.output_gradient, call.inputs[0], {call.inputs[0].size(1)}, call.outputs[1].view({rows, 1}),
      call.outputs[2].view({rows, 1}), call.parameters[0], call.parameters[1],
      {wants_input(call, 0), wants_parameter(call, 0), wants_parameter(call, 1)});
  deliver_gradient(call, 0, dx);
  if (wants_parameter(call, 0)) store(call.parameter_gradients[0], dw, adds_parameter(call, 0));
  if (wants_parameter(call, 1)) store(call.parameter_gradients[1], db, adds_parameter(call, 1));
}

}  // namespace

const DeviceFunctions rows::layer_norm{.cpu = {layer_norm_forward_cpu, layer_norm_backward_cpu},
                                       .cuda = {layer_norm_forward_cuda, layer_norm_backward_cuda}};

}  // namespace vramfit::kernels
