#include <ATen/ATen.h>

#include "tests/executor/kernels/gelu_bound_torch.h"

namespace vramfit::testing {

namespace {

/// Of GELU and its derivative at x: the sums of the absolute values of the terms that are added up.
struct GeluTerms {
  at::Tensor value, derivative;
};
GeluTerms terms_of(Activation activation, const at::Tensor& x) {
  constexpr double kBeta = 0.7978845608, kCubic = 0.044715, kRootOfHalf = 0.7071067812, kPeak = 0.3989422804;
  const bool is_tanh = activation == Activation::gelu_tanh;
  const at::Tensor t = is_tanh ? at::tanh(kBeta * (x + kCubic * x.pow(3))) : at::erf(kRootOfHalf * x);
  const at::Tensor half = 0.5 * (1 + t.abs());
  const at::Tensor slope =
      is_tanh ? 0.5 * (1 + t.pow(2)) * kBeta * (1 + 3 * kCubic * x.pow(2)) : kPeak * at::exp(-0.5 * x.pow(2));
  return {x.abs() * half, half + x.abs() * slope};
}

/// What GELU's results on a GPU may differ by from those of CPU ranks. CUDA's tanhf and erff are within two units in
/// the last place, and so are those of the C library: between them are at most four, 2^-22, as both functions are below
/// 1. A result takes at most half of that, or 2 c t of it where c (1 - t^2) is added, which is at most the terms' sum.
/// After that, a number of at most eight is rounded one after the other on each side, by half a unit, 2^-24 of the
/// terms' sum: 2^-20.
double largest_of_terms() { return 0x1p-22 + 0x1p-20; }

/// One that is rounded to its dtype may then be the next number.
double last_place(at::ScalarType type) { return type == at::kFloat ? 0x1p-23 : type == at::kHalf ? 0x1p-10 : 0x1p-7; }

bool are_near(const at::Tensor& own, const at::Tensor& cpu, const at::Tensor& terms) {
  if (!own.defined() || !cpu.defined()) return own.defined() == cpu.defined();
  constexpr double kLeastHalf = 0x1p-24;  // numbers of fp16 are at least so far apart
  const at::Tensor most = largest_of_terms() * terms + last_place(cpu.scalar_type()) * cpu.to(at::kDouble).abs() +
                          (cpu.scalar_type() == at::kHalf ? kLeastHalf : 0);
  return (own.to(at::kDouble) - cpu.to(at::kDouble)).abs().le(most).all().item<bool>();
}

}  // namespace

std::string gelu_apart(const OpCase& op, const OpResult& own, const OpResult& cpu) {
  const at::ScalarType type = cpu.output.scalar_type();
  const auto number = [&](const at::Tensor& tensor) { return tensor.to(type).to(at::kDouble); };
  const GeluTerms terms = terms_of(op.attributes.activation, number(op.inputs[0]));
  const at::Tensor up = number(op.inputs[1]).abs(), gradient = number(output_gradient_of(op)).abs();
  if (own.gradients.size() != 2 || cpu.gradients.size() != 2) return "there are not two gradients";
  if (!are_near(own.output, cpu.output, up * terms.value)) return "output";
  if (!are_near(own.gradients[0], cpu.gradients[0], gradient * up * terms.derivative)) return "gradient of the gate";
  return are_near(own.gradients[1], cpu.gradients[1], gradient * terms.value) ? "" : "gradient of the other half";
}

}  // namespace vramfit::testing
