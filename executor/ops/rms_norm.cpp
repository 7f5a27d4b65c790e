#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>

#include <cmath>
#include <tuple>

#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/rules.h"

namespace vramfit::kernels {

namespace {

/// The G groups of a row are rows of their own with the same weight.
struct Shape {
  explicit Shape(const OpCall& call)
      : width(call.parameters[0].numel()), rows(call.inputs[0].numel() / std::max<std::int64_t>(width, 1)) {}
  std::int64_t width, rows;
};

template <typename T>
void forward_rows(OpCall& call) {
  const Shape shape(call);
  const std::int64_t n = shape.width;
  const T *x = data<T>(call.inputs[0]), *weight = data<T>(call.parameters[0]);
  T* y = data<T>(call.outputs[0]);
  auto* rstd = data<float>(call.outputs[1]);
  const auto eps = static_cast<float>(attributes(call).eps);
  const float plus = attributes(call).weight_plus_one ? 1.0F : 0.0F;
  parallel_rows(shape.rows, n, [=](std::int64_t row) {
    const T* from = x + row * n;
    T* to = y + row * n;
    const float squares = row_sum(n, [=](std::int64_t c) {
      const auto v = static_cast<float>(from[c]);
      return v * v;
    });
    const float r = 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
    rstd[row] = r;
    for (std::int64_t c = 0; c < n; ++c) {
      to[c] = static_cast<T>(static_cast<float>(from[c]) * r * (static_cast<float>(weight[c]) + plus));
    }
  });
}

/// dx = rstd (g - xhat mean(g xhat)) with g = dy * weight, xhat = x rstd.
template <typename T>
void input_gradient(OpCall& call) {
  const Shape shape(call);
  const std::int64_t n = shape.width;
  const T *x = data<T>(call.inputs[0]), *weight = data<T>(call.parameters[0]), *dy = data<T>(*call.output_gradient);
  const auto* rstd = data<float>(call.outputs[1]);
  T* dx = data<T>(call.input_gradients[0]);
  const float plus = attributes(call).weight_plus_one ? 1.0F : 0.0F;
  const bool add = adds_input(call, 0);
  parallel_rows(shape.rows, n, [=](std::int64_t row) {
    const T *from = x + row * n, *gradient = dy + row * n;
    T* to = dx + row * n;
    const float r = rstd[row];
    const float mean =
        r / static_cast<float>(n) * row_sum(n, [=](std::int64_t c) {
          return static_cast<float>(gradient[c]) * (static_cast<float>(weight[c]) + plus) * static_cast<float>(from[c]);
        });
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < n; ++c) {
      const float g = static_cast<float>(gradient[c]) * (static_cast<float>(weight[c]) + plus);
      put(to[c], r * (g - static_cast<float>(from[c]) * r * mean), add);
    }
  });
}

template <typename T>
void weight_gradient(OpCall& call) {
  const Shape shape(call);
  const std::int64_t n = shape.width;
  const T *x = data<T>(call.inputs[0]), *dy = data<T>(*call.output_gradient);
  const auto* rstd = data<float>(call.outputs[1]);
  T* target = data<T>(call.parameter_gradients[0]);
  const bool add = adds_parameter(call, 0);
  column_sums(
      shape.rows, n,
      [=](std::int64_t row, std::int64_t c) {
        return static_cast<float>(dy[row * n + c]) * static_cast<float>(x[row * n + c]) * rstd[row];
      },
      [=](std::int64_t c, float sum) { put(target[c], sum, add); });
}

void rms_norm_forward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) { forward_rows<decltype(zero)>(call); });
}

void rms_norm_backward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    // The weight's gradient first: the input's may be written over what it reads.
    if (wants_parameter(call, 0)) weight_gradient<T>(call);
    if (wants_input(call, 0)) input_gradient<T>(call);
  });
}

at::Tensor used_weight(OpCall& call) {
  if (!attributes(call).weight_plus_one) return call.parameters[0];
  at::Tensor plus_one =
      call.temporaries.allocate("weight_plus_one", call.parameters[0].sizes().vec(), call.context.compute());
  return plus_one.copy_(call.parameters[0]).add_(1);  // add_out with a number makes a tensor of its own
}

at::Tensor grouped(const at::Tensor& t, const OpCall& call) {
  const Shape shape(call);
  return t.view({shape.rows, shape.width});
}

// The call makes y and rstd itself (Rule::outputs_inside).
void rms_norm_forward_cuda(OpCall& call) {
  const at::Tensor weight = used_weight(call);
  std::tie(call.outputs[0], call.outputs[1]) =
      at::_fused_rms_norm(grouped(call.inputs[0], call), weight.sizes(), weight, attributes(call).eps);
  const std::int64_t tokens = call.inputs[0].size(0);
  call.outputs[0] = call.outputs[0].view(call.inputs[0].sizes());
  call.outputs[1] = call.outputs[1].view({tokens, call.outputs[1].numel() / std::max<std::int64_t>(tokens, 1)});
}

void rms_norm_backward_cuda(OpCall& call) {
  const at::Tensor weight = used_weight(call);
  const Shape shape(call);
  auto [dx, dw] = at::_fused_rms_norm_backward(grouped(*call.output_gradient, call), grouped(call.inputs[0], call),
                                               weight.sizes(), call.outputs[1].view({shape.rows, 1}), weight,
                                               {wants_input(call, 0), wants_parameter(call, 0)});
  if (wants_input(call, 0)) deliver_gradient(call, 0, dx.view(call.inputs[0].sizes()));
  if (wants_parameter(call, 0)) {
    at::Tensor& target = call.parameter_gradients[0];
    adds_parameter(call, 0) ? target.add_(dw) : target.copy_(dw);
  }
}

cuda::NormRows own_rows(const OpCall& call) {
  const Shape shape(call);
  return {.x = call.inputs[0].mutable_data_ptr(),
          .weight = call.parameters[0].const_data_ptr(),
          .number = number_of(call.inputs[0].scalar_type()),
          .rows = shape.rows,
          .columns = shape.width,
          .eps = static_cast<float>(attributes(call).eps),
          .plus = attributes(call).weight_plus_one ? 1.0F : 0.0F,
          .rstd = call.outputs[1].mutable_data_ptr<float>()};
}

void forward_own(OpCall& call, const void* residual) {
  const at::Tensor& y = call.outputs[0];
  check_launch(require_own_kernels().rms_norm(own_rows(call), residual, y.mutable_data_ptr(), stream_of(y)));
}

void rms_norm_forward_own(OpCall& call) { forward_own(call, nullptr); }

/// The sum is x: it lies where the branch's result was.
void add_and_rms_norm_own(OpCall& add, OpCall& call) { forward_own(call, add.inputs[0].const_data_ptr()); }

void rms_norm_backward_own(OpCall& call) {
  const Shape shape(call);
  const bool input = wants_input(call, 0), weight = wants_parameter(call, 0);
  at::Tensor partial;
  const std::int64_t partial_rows = norm_partial_rows(shape.rows, call.context.device);
  if (input && weight) partial = call.temporaries.allocate("partial_rows", {partial_rows, shape.width}, Dtype::f32);
  const cuda::NormGradients gradients{
      .output = call.output_gradient->const_data_ptr(),
      .input = input ? call.input_gradients[0].mutable_data_ptr() : nullptr,
      .add_input = adds_input(call, 0),
      .weight = weight ? call.parameter_gradients[0].mutable_data_ptr() : nullptr,
      .add_weight = adds_parameter(call, 0),
      .partial = partial.defined() ? partial.mutable_data_ptr<float>() : nullptr,
      .partial_rows = partial_rows,
  };
  check_launch(require_own_kernels().rms_norm_backward(own_rows(call), gradients, stream_of(call.inputs[0])));
}

}  // namespace

const DeviceFunctions rows::rms_norm{
    .cpu = {rms_norm_forward_cpu, rms_norm_backward_cpu},
    .cuda = {rms_norm_forward_cuda, rms_norm_backward_cuda},
    .own_cuda = {
        .forward = rms_norm_forward_own, .backward = rms_norm_backward_own, .joint_forward = add_and_rms_norm_own}};

}  // namespace vramfit::kernels
