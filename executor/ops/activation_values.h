// Activation functions and their derivatives, element by element in fp32, as CPU ranks and own CUDA kernels compute
// them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "executor/optimizers/on_both.h"

namespace vramfit::kernels {

/// e^x to about 1 ulp, without branches so that loops over it vectorize; below -87 it stays at e^-87. Range reduction
/// x = n ln 2 + r and a polynomial of degree 5 in r (coefficients of Cephes' expf).
VRAMFIT_ON_BOTH inline float fast_exp(float x) {
  x = std::min(std::max(x, -87.0F), 88.0F);
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float mantissa = p * r * r + r + 1.0F;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  return mantissa * std::bit_cast<float>((exponent + 127) << 23);
}

struct Silu {
  VRAMFIT_ON_BOTH static float sigmoid(float x) { return 1.0F / (1.0F + fast_exp(-x)); }
  VRAMFIT_ON_BOTH static float value(float x) { return x * sigmoid(x); }
  VRAMFIT_ON_BOTH static float derivative(float x) {
    const float s = sigmoid(x);
    return s * (1.0F + x * (1.0F - s));
  }
};

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
struct GeluTanh {
  static constexpr float kBeta = 0.7978845608F, kCubic = 0.044715F;
  VRAMFIT_ON_BOTH static float inner_tanh(float x) { return std::tanh(kBeta * (x + kCubic * x * x * x)); }
  VRAMFIT_ON_BOTH static float value(float x) { return 0.5F * x * (1.0F + inner_tanh(x)); }
  VRAMFIT_ON_BOTH static float derivative(float x) {
    const float t = inner_tanh(x);
    return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * kBeta * (1.0F + 3.0F * kCubic * x * x);
  }
};

/// x/2 (1 + erf(x / sqrt 2)).
struct GeluErf {
  VRAMFIT_ON_BOTH static float cdf(float x) { return 0.5F * (1.0F + std::erf(x * 0.7071067812F)); }
  VRAMFIT_ON_BOTH static float value(float x) { return x * cdf(x); }
  VRAMFIT_ON_BOTH static float derivative(float x) { return cdf(x) + x * 0.3989422804F * fast_exp(-0.5F * x * x); }
};

struct Relu {
  VRAMFIT_ON_BOTH static float value(float x) { return std::max(x, 0.0F); }
  VRAMFIT_ON_BOTH static float derivative(float x) { return x > 0.0F ? 1.0F : 0.0F; }
};

}  // namespace vramfit::kernels
