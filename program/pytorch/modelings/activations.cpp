#include "program/pytorch/modelings/activations.h"

#include <stdexcept>

namespace vramfit::eager {

namespace {

/// 0.5 * x * (1.0 + tanh(c * (x + 0.044715 * pow(x, 3.0)))): autocast computes powers in fp32.
Tensor gelu_new(Torch& torch, const Tensor& x) {
  const Tensor half = torch.scale(x);
  Tensor inner = torch.power(torch.autocast() ? torch.cast(x, Dtype::f32) : x);
  inner = torch.scale(inner);
  inner = torch.add(x, inner);
  inner = torch.scale(inner);
  inner = torch.tanh(inner);
  inner = torch.add_scalar(inner);
  return torch.multiply(half, inner);
}

}  // namespace

Tensor activated(Torch& torch, const Tensor& x, Activation activation, bool is_composed) {
  if (is_composed) return gelu_new(torch, x);
  if (activation == Activation::relu) throw std::logic_error("relu has no rule");
  return activation == Activation::silu ? torch.silu(x) : torch.gelu(x);
}

}  // namespace vramfit::eager
