#include <ATen/ops/addcmul.h>

#include <cmath>

#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

// outputs[0] is inputs[0].
void softcap_forward_cpu(OpCall& call) {
  const auto cap = static_cast<float>(attributes(call).softcap);
  with_type(call.outputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* y = data<T>(call.outputs[0]);
    put_elements<T>(call.outputs[0], false,
                    [=](std::int64_t e) { return cap * std::tanh(static_cast<float>(y[e]) / cap); });
  });
}

void softcap_backward_cpu(OpCall& call) {
  if (!wants_input(call, 0)) return;
  const auto cap = static_cast<float>(attributes(call).softcap);
  with_type(call.outputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T *y = data<T>(call.outputs[0]), *dy = data<T>(*call.output_gradient);
    put_elements<T>(call.input_gradients[0], adds_input(call, 0), [=](std::int64_t e) {
      const float t = static_cast<float>(y[e]) / cap;
      return static_cast<float>(dy[e]) * (1.0F - t * t);
    });
  });
}

void softcap_forward_cuda(OpCall& call) {
  call.outputs[0].div_(attributes(call).softcap).tanh_().mul_(attributes(call).softcap);
}

// The last reader of y may spend it: ops below have no part in it, ops above have run.
void softcap_backward_cuda(OpCall& call) {
  if (!wants_input(call, 0)) return;
  const at::Tensor& dy = *call.output_gradient;
  at::Tensor& dx = call.input_gradients[0];
  at::Tensor squares = call.outputs[0].div_(attributes(call).softcap).square_();
  if (adds_input(call, 0)) {
    dx.add_(dy).sub_(squares.mul_(dy));
  } else {
    at::addcmul_out(dx, dy, dy, squares, -1);
  }
}

}  // namespace

const DeviceFunctions rows::softcap{.cpu = {softcap_forward_cpu, softcap_backward_cpu},
                                    .cuda = {softcap_forward_cuda, softcap_backward_cuda}};

}  // namespace vramfit::kernels
