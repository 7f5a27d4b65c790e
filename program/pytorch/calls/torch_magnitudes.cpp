// What PEFT computes for DoRA beside its adapters (tuners/lora/dora.py: DoraLinearLayer).
#include <utility>

#include "base/numbers/index.h"
#include "base/text/units.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

Tensor Torch::identity(std::int64_t width, Dtype dtype) {
  return computed("aten::eye", {}, temporary(checked_mul(width, width), dtype, "identity"));
}

Tensor Torch::frozen_in(int parameter, std::int64_t elements, Dtype dtype, Dtype original) {
  if (!is_quantized(parameter)) {
    if (parameters_[at(parameter)].dtype == dtype) return {};
    return computed("aten::_to_copy", {reads_parameter(parameter)}, temporary(elements, dtype, "weight, cast"));
  }
  Tensor scales = dequantized_scales(parameter, elements);
  Tensor weight = dequantized(reads_parameter(parameter), elements, scales, original);
  scales = {};
  if (original == dtype) return weight;
  return computed("aten::_to_copy", {reads(weight)}, temporary(elements, dtype, "weight, cast"));
}

Tensor Torch::linear_of_frozen(const Tensor& x, int parameter, const Tensor& weight, std::int64_t inputs,
                               std::int64_t outputs) {
  Factors factors;
  if (weight.elements == 0) {
    factors.weight = operand(parameter, checked_mul(inputs, outputs));
  } else {
    const Tensor made = autocast_ ? cast(weight, *autocast_) : weight;
    factors.weight = {made, reads(made), edge_to(made)};
  }
  factors.input = factor_of(x);
  return product_of(std::move(factors), inputs, outputs);
}

/// Autocast has norms in fp32 (ATen/autocast_mode.h: linalg_vector_norm), which reads 16 bits as they are.
Tensor Torch::norms_with_change(int parameter, const Tensor& weight, const Tensor& change, std::int64_t outputs) {
  const auto sum_of_both = [&] {
    const Tensor scaled =
        computed("aten::mul", {reads(change)}, temporary(change.elements, change.dtype, "scaled change"));
    const program::Access own = weight.elements == 0 ? reads_parameter(parameter) : reads(weight);
    return computed("aten::add", {own, reads(scaled)}, temporary(change.elements, change.dtype, "changed weight"));
  };
  const Tensor sum = sum_of_both();
  const Dtype dtype = autocast_ ? Dtype::f32 : sum.dtype;
  const Tensor norms = computed("aten::linalg_vector_norm", {reads(sum)}, value(outputs, dtype, "norms"));
  if (dtype == sum.dtype) return norms;
  return computed("aten::_to_copy", {reads(norms)}, value(outputs, sum.dtype, "norms, cast"));
}

Tensor Torch::parameter_over(int parameter, const Tensor& divisor, std::int64_t width) {
  const Dtype dtype = parameters_[at(parameter)].dtype;
  std::vector<Saved> saved{save(divisor)};
  Edge edge = edge_to(parameter, width);
  edge.dtype = dtype;
  Tensor quotient = value(width, wider(dtype, divisor.dtype), "div");
  return record(computed("aten::div", {reads_parameter(parameter), reads(divisor)}, std::move(quotient)),
                {std::move(edge)}, std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor made = heap_.make(g.elements, g.dtype, Category::gradients, "magnitude gradient");
                  return std::vector<Tensor>{computed("aten::div", {reads(g), reads(kept[0])}, std::move(made))};
                });
}

Tensor Torch::minus_frozen(const Tensor& x, int parameter) {
  Edge edge = edge_to(x);
  Tensor difference = value(x.elements, wider(x.dtype, parameters_[at(parameter)].dtype), "sub");
  if (difference.dtype != x.dtype) edge.dtype = x.dtype;
  return record(computed("aten::sub", {reads(x), reads_parameter(parameter)}, std::move(difference)), {std::move(edge)},
                {}, [](Tensor& g, const std::vector<Tensor>&) { return std::vector<Tensor>{g}; });
}

Tensor Torch::row_times(const Tensor& vector, const Tensor& x) {
  Tensor y = multiply(vector, x);
  if (y.made_by != nullptr) y.made_by->next[0].sum = Edge::Sum::over_rows;
  return y;
}

}  // namespace vramfit::eager
