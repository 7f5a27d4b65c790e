#include <ATen/ops/mul.h>

#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/activation_torch.h"

namespace vramfit::kernels {

namespace {

void glu_forward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *gate = data<T>(call.inputs[0]), *up = data<T>(call.inputs[1]);
    with_activation(attributes(call).activation, [&](auto act) {
      put_elements<T>(call.outputs[0], false, [=](std::int64_t e) {
        return act.value(static_cast<float>(gate[e])) * static_cast<float>(up[e]);
      });
    });
  });
}

/// A block is read before its gradients are written: they may lie over gate and up.
template <typename T, typename Act>
void backward_elements(OpCall& call, Act act) {
  const T *gate = data<T>(call.inputs[0]), *up = data<T>(call.inputs[1]), *dy = data<T>(*call.output_gradient);
  T* d_gate = wants_input(call, 0) ? data<T>(call.input_gradients[0]) : nullptr;
  T* d_up = wants_input(call, 1) ? data<T>(call.input_gradients[1]) : nullptr;
  const bool add_gate = adds_input(call, 0), add_up = adds_input(call, 1);
  parallel_elements(call.inputs[0].numel(), [=](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBlock = 256;
    float g[kBlock], u[kBlock], d[kBlock];
    for (std::int64_t first = begin; first < end; first += kBlock) {
      const std::int64_t count = std::min(kBlock, end - first);
      for (std::int64_t i = 0; i < count; ++i) {
        g[i] = static_cast<float>(gate[first + i]);
        u[i] = static_cast<float>(up[first + i]);
        d[i] = static_cast<float>(dy[first + i]);
      }
      if (d_gate != nullptr) {
        for (std::int64_t i = 0; i < count; ++i) put(d_gate[first + i], d[i] * u[i] * act.derivative(g[i]), add_gate);
      }
      if (d_up != nullptr) {
        for (std::int64_t i = 0; i < count; ++i) put(d_up[first + i], d[i] * act.value(g[i]), add_up);
      }
    }
  });
}

void glu_backward_cpu(OpCall& call) {
  with_type(call.inputs[0].scalar_type(), [&](auto zero) {
    with_activation(attributes(call).activation, [&](auto act) { backward_elements<decltype(zero)>(call, act); });
  });
}

void glu_forward_cuda(OpCall& call) {
  activation_out(attributes(call).activation, call.inputs[0], call.outputs[0]);
  call.outputs[0].mul_(call.inputs[1]);
}

void glu_backward_cuda(OpCall& call) {
  const Activation activation = attributes(call).activation;
  const at::Tensor& dy = *call.output_gradient;
  at::Tensor d_act = call.temporaries.allocate("activation_gradient", dy.sizes().vec(), call.context.compute());
  if (wants_input(call, 0)) at::mul_out(d_act, dy, call.inputs[1]);
  if (wants_input(call, 1)) {
    const bool add = adds_input(call, 1);
    at::Tensor act = call.input_gradients[1];
    if (add) act = call.temporaries.allocate("activation", dy.sizes().vec(), call.context.compute());
    activation_out(activation, call.inputs[0], act);
    act.mul_(dy);
    if (add) call.input_gradients[1].add_(act);
  }
  if (!wants_input(call, 0)) return;
  activation_backward_out(activation, d_act, call.inputs[0], d_act);
  adds_input(call, 0) ? call.input_gradients[0].add_(d_act) : call.input_gradients[0].copy_(d_act);
}

cuda::Activation activation_of(const OpCall& call) {
  switch (attributes(call).activation) {
    case Activation::silu:
      return cuda::Activation::silu;
    case Activation::gelu_tanh:
      return cuda::Activation::gelu_tanh;
    case Activation::gelu_erf:
      return cuda::Activation::gelu_erf;
    case Activation::relu:
      return cuda::Activation::relu;
  }
  return cuda::Activation::silu;
}

cuda::GatedUnit unit_of(const OpCall& call) {
  const at::Tensor& gate = call.inputs[0];
  return {.gate = gate.const_data_ptr(),
          .up = call.inputs[1].const_data_ptr(),
          .number = number_of(gate.scalar_type()),
          .elements = gate.numel(),
          .activation = activation_of(call)};
}

void glu_forward_own(OpCall& call) {
  const at::Tensor& output = call.outputs[0];
  check_launch(require_own_kernels().gate(unit_of(call), output.mutable_data_ptr(), stream_of(output)));
}

void glu_backward_own(OpCall& call) {
  const auto to = [&](std::size_t i) {
    return wants_input(call, i) ? call.input_gradients[i].mutable_data_ptr() : nullptr;
  };
  const cuda::GatedUnitGradients gradients{.output = call.output_gradient->const_data_ptr(),
                                           .gate = to(0),
                                           .up = to(1),
                                           .add_gate = adds_input(call, 0),
                                           .add_up = adds_input(call, 1)};
  check_launch(require_own_kernels().gate_backward(unit_of(call), gradients, stream_of(call.inputs[0])));
}

}  // namespace

const DeviceFunctions rows::glu{.cpu = {glu_forward_cpu, glu_backward_cpu},
                                .cuda = {glu_forward_cuda, glu_backward_cuda},
                                .own_cuda = {glu_forward_own, glu_backward_own}};

}  // namespace vramfit::kernels
