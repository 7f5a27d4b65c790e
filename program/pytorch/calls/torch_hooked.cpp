// Hooks of modules, and layers whose parameters come and go between forward and backward: DeepSpeed's ZeRO-3 has a
// linear of its own.
#include <optional>
#include <utility>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

Tensor Torch::enter(const Submodule& module, const Tensor& x) const {
  return hooks_ == nullptr ? x : hooks_->enter(module, x);
}

Tensor Torch::leave(const Submodule& module, Tensor y) const {
  return hooks_ == nullptr ? y : hooks_->leave(module, std::move(y));
}

void Torch::reach(const Submodule& module, int parameter) const {
  if (hooks_ != nullptr) hooks_->reach(module, parameter);
}

std::optional<Dtype> Torch::seen_dtype(int parameter) const {
  return hooks_ == nullptr ? std::nullopt : hooks_->seen_dtype(parameter);
}

/// Autograd keeps the parameter itself and not its values, unless a checkpoint looks: that keeps the values of what is
/// trained, and a frozen parameter itself (torch/utils/checkpoint.py: _recomputation_hook).
Saved Torch::save_hooked(int parameter, bool is_needed) const {
  if (hooks_ == nullptr || checkpoints_.hook == nullptr || !is_needed) return {};
  return checkpoints_.hook->pack(is_trained(parameter) ? hooks_->values_of(parameter) : Tensor{});
}

program::Access Torch::reads_hooked(const Tensor& kept, int parameter) const {
  return kept.storage ? reads(kept) : reads_parameter(parameter);
}

/// deepspeed/runtime/zero/linear.py: LinearFunctionForZeroStage3, one node of autograd. It keeps its input and its
/// parameters once the product is there, and makes the input's gradient first. It keeps the input of a frozen weight,
/// too.
Tensor Torch::hooked_linear(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias) {
  const std::int64_t rows = x.elements / inputs;
  const bool x_wants = x.wants_gradient, has_bias = bias >= 0, weight_wants = is_trained(parameter);
  const bool bias_wants = has_bias && is_trained(bias), is_recorded = x_wants || weight_wants || bias_wants;
  Tensor y = product({reads(x), reads_parameter(parameter)}, {rows, outputs, inputs}, x.dtype, false);
  y.is_view = false;
  if (has_bias) heap_.run("aten::add_", {reads_parameter(bias), changes(y)});
  std::vector<Saved> saved{save(x, is_recorded), save_hooked(parameter, is_recorded)};
  if (has_bias) saved.push_back(save_hooked(bias, is_recorded));
  std::vector<Edge> edges{edge_to(x), edge_to(parameter, checked_mul(inputs, outputs))};
  if (has_bias) edges.push_back(edge_to(bias, outputs));
  const auto backward = [=, this, dtype = x.dtype](Tensor& g, const std::vector<Tensor>& kept) {
    const auto multiply = [&](const Accesses& factors, const WorkShape& shape, Tensor made) {
      ensure_workspace();
      return multiplied(factors, shape, std::move(made));
    };
    std::vector<Tensor> gradients(2);
    if (x_wants) {
      gradients[0] = multiply({reads(g), reads_hooked(kept[1], parameter)}, {rows, inputs, outputs},
                              value(rows * inputs, dtype, "input gradient"));
    }
    if (weight_wants) {
      gradients[1] = multiply({reads(g), reads(kept[0])}, {outputs, inputs, rows},
                              heap_.make(inputs * outputs, dtype, Category::gradients, "weight gradient"));
    }
    if (bias_wants) {
      Edge sum = edge_to(bias, outputs);
      sum.sum = Edge::Sum::over_rows;
      gradients.push_back(sum_to(g, sum));
    }
    return gradients;
  };
  y = record(std::move(y), std::move(edges), std::move(saved), backward);
  if (y.made_by != nullptr) y.made_by->parameters_first = false;
  return y;
}

}  // namespace vramfit::eager
