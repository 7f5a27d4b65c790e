#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

// outputs[0] is inputs[0].
void scale_forward_cpu(OpCall& call) {
  const auto scale = static_cast<float>(attributes(call).scale);
  with_type(call.outputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    T* y = data<T>(call.outputs[0]);
    put_elements<T>(call.outputs[0], false, [=](std::int64_t e) { return scale * static_cast<float>(y[e]); });
  });
}

void scale_backward_cpu(OpCall& call) {
  if (!wants_input(call, 0)) return;
  const auto scale = static_cast<float>(attributes(call).scale);
  with_type(call.output_gradient->scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* dy = data<T>(*call.output_gradient);
    put_elements<T>(call.input_gradients[0], adds_input(call, 0),
                    [=](std::int64_t e) { return scale * static_cast<float>(dy[e]); });
  });
}

void scale_forward_cuda(OpCall& call) { call.outputs[0].mul_(attributes(call).scale); }

void scale_backward_cuda(OpCall& call) {
  if (!wants_input(call, 0)) return;
  const at::Tensor& dy = *call.output_gradient;
  at::Tensor& dx = call.input_gradients[0];
  if (adds_input(call, 0)) {
    dx.add_(dy, attributes(call).scale);
    return;
  }
  if (dx.data_ptr() != dy.data_ptr()) dx.copy_(dy);
  dx.mul_(attributes(call).scale);
}

}  // namespace

const DeviceFunctions rows::scale{.cpu = {scale_forward_cpu, scale_backward_cpu},
                                  .cuda = {scale_forward_cuda, scale_backward_cuda}};

}  // namespace vramfit::kernels
