// Activation functions (executor/ops/activation_values.h) by name, and by ATen's kernels.
#pragma once

#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

/// Calls f with the struct of an activation.
template <typename F>
void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::silu:
      return f(Silu{});
    case Activation::gelu_tanh:
      return f(GeluTanh{});
    case Activation::gelu_erf:
      return f(GeluErf{});
    case Activation::relu:
      return f(Relu{});
  }
}

/// out = act(x) and dx = dy act'(x) by ATen's kernels; out may be x, dx may be dy or x.
void activation_out(Activation activation, const at::Tensor& x, at::Tensor& out);
void activation_backward_out(Activation activation, const at::Tensor& gradient, const at::Tensor& x, at::Tensor& out);

}  // namespace vramfit::kernels
