#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "executor/ops/activation_torch.h"

namespace vramfit::kernels {

namespace {

void activation_forward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = data<T>(call.inputs[0]);
    with_activation(attributes(call).activation, [&](auto act) {
      put_elements<T>(call.outputs[0], false, [=](std::int64_t e) { return act.value(static_cast<float>(x[e])); });
    });
  });
}

void activation_backward_cpu(OpCall& call) {
  if (!wants_input(call, 0)) return;
  with_type(call.inputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *x = data<T>(call.inputs[0]), *dy = data<T>(*call.output_gradient);
    with_activation(attributes(call).activation, [&](auto act) {
      put_elements<T>(call.input_gradients[0], adds_input(call, 0), [=](std::int64_t e) {
        return static_cast<float>(dy[e]) * act.derivative(static_cast<float>(x[e]));
      });
    });
  });
}

void activation_forward_cuda(OpCall& call) {
  activation_out(attributes(call).activation, call.inputs[0], call.outputs[0]);
}

void activation_backward_cuda(OpCall& call) {
  if (!wants_input(call, 0)) return;
  const Activation activation = attributes(call).activation;
  if (!adds_input(call, 0)) {
    activation_backward_out(activation, *call.output_gradient, call.inputs[0], call.input_gradients[0]);
    return;
  }
  at::Tensor product = call.temporaries.allocate("product", call.inputs[0].sizes().vec(), call.context.compute());
  activation_backward_out(activation, *call.output_gradient, call.inputs[0], product);
  call.input_gradients[0].add_(product);
}

}  // namespace

void activation_out(Activation activation, const at::Tensor& x, at::Tensor& out) {
  switch (activation) {
    case Activation::silu:
      at::silu_out(out, x);
      return;
    case Activation::gelu_tanh:
      at::gelu_out(out, x, "tanh");
      return;
    case Activation::gelu_erf:
      at::gelu_out(out, x, "none");
      return;
    case Activation::relu:
      at::relu_out(out, x);
      return;
  }
}

void activation_backward_out(Activation activation, const at::Tensor& gradient, const at::Tensor& x, at::Tensor& out) {
  switch (activation) {
    case Activation::silu:
      at::silu_backward_out(out, gradient, x);
      return;
    case Activation::gelu_tanh:
      at::gelu_backward_out(out, gradient, x, "tanh");
      return;
    case Activation::gelu_erf:
      at::gelu_backward_out(out, gradient, x, "none");
      return;
    case Activation::relu:
      at::threshold_backward_out(out, gradient, x, 0);
      return;
  }
}

const DeviceFunctions rows::activation{.cpu = {activation_forward_cpu, activation_backward_cpu},
                                       .cuda = {activation_forward_cuda, activation_backward_cuda}};

}  // namespace vramfit::kernels
