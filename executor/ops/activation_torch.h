// Activation functions and their derivatives, element by element in fp32.
#pragma once

#include <cmath>

#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

struct Silu {
  static float sigmoid(float x) { return 1.0F / (1.0F + fast_exp(-x)); }
  static float value(float x) { return x * sigmoid(x); }
  static float derivative(float x) {
    const float s = sigmoid(x);
    return s * (1.0F + x * (1.0F - s));
  }
};

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
struct GeluTanh {
  static constexpr float kBeta = 0.7978845608F, kCubic = 0.044715F;
  static float inner_tanh(float x) { return std::tanh(kBeta * (x + kCubic * x * x * x)); }
  static float value(float x) { return 0.5F * x * (1.0F + inner_tanh(x)); }
  static float derivative(float x) {
    const float t = inner_tanh(x);
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * kBeta * (1.0F + 3.0F * kCubic * x * x);
  }
};

/// x/2 (1 + erf(x / sqrt 2)).
struct GeluErf {
  static float cdf(float x) { return 0.5F * (1.0F + std::erf(x * 0.7071067812F)); }
  static float value(float x) { return x * cdf(x); }
  static float derivative(float x) { return cdf(x) + x * 0.3989422804F * fast_exp(-0.5F * x * x); }
};

struct Relu {
  static float value(float x) { return std::max(x, 0.0F); }
  static float derivative(float x) { return x > 0.0F ? 1.0F : 0.0F; }
};

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
