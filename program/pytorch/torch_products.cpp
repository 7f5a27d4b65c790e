// Products with parameters: linear layers, with a bias and under autocast.
#include <utility>

#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/kernels.h"
#include "program/pytorch/torch.h"

namespace vramfit::eager {

Tensor Torch::multiplied(Accesses inputs, const WorkShape& shape, Tensor output) {
  inputs.push_back(writes(output));
  const double sums = static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
  heap_.run("aten::mm", inputs,
            {.unit = Work::Unit::product,
             .dtype = output.dtype,
             .flops = 2 * sums * static_cast<double>(shape.inner),
             .bytes = heap_.bytes_of(inputs),
             .shape = shape});
  return output;
}

void Torch::ensure_workspace() {
  Tensor& workspace = workspaces_.at(in_backward_ ? 1 : 0);
  if (workspace.elements != 0) return;
  const Scope scope(heap_, in_backward_ ? "backward thread" : "main thread");
  workspace = heap_.make(cublas_workspace(device_).n, Dtype::u8, Category::workspace, "cublas workspace");
}

/// Of products with a bias, which cuBLASLt computes (ATen/cuda/CUDAContextLight: 1 MiB unless a variable says more).
void Torch::ensure_lt_workspace() {
  ensure_workspace();
  Tensor& workspace = lt_workspaces_.at(in_backward_ ? 1 : 0);
  if (workspace.elements != 0) return;
  const Scope scope(heap_, in_backward_ ? "backward thread" : "main thread");
  workspace = heap_.make(kMiB.n, Dtype::u8, Category::workspace, "cublaslt workspace");
}

Tensor Torch::cast_parameter(int parameter, std::int64_t elements) {
  Tensor& cast = cast_parameters_[parameter];
  if (cast.elements != 0) return cast;
  cast = record(computed("aten::_to_copy", {reads_parameter(parameter)}, value(elements, *autocast_, "weight, cast")),
                {edge_to(parameter, elements)}, {}, [this](Tensor& g, const std::vector<Tensor>&) {
                  Tensor wide = heap_.make(g.elements, Dtype::f32, Category::gradients, "weight gradient");
                  return std::vector<Tensor>{computed("aten::_to_copy", {reads(g)}, std::move(wide))};
                });
  return cast;
}

void Torch::set_autocast(std::optional<Dtype> dtype) {
  autocast_ = dtype;
  cast_parameters_.clear();
}

Torch::Operand Torch::operand(int parameter, std::int64_t elements) {
  if (!autocast_) return {{}, reads_parameter(parameter), edge_to(parameter, elements)};
  Tensor cast = cast_parameter(parameter, elements);
  const program::Access access = reads(cast);
  Edge edge = edge_to(cast);
  return {std::move(cast), access, std::move(edge)};
}

/// mm, whose backward makes the weight's gradient first, or with a bias addmm, where it comes second. Autocast converts
/// arguments from the last to the first.
Tensor Torch::linear_of_operands(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias) {
  const bool has_bias = bias >= 0;
  Operand added = has_bias ? operand(bias, outputs) : Operand{{}, {-1, program::How::read}, {}};
  Operand weight = operand(parameter, checked_mul(inputs, outputs));
  const Tensor input = autocast_ ? cast(x, *autocast_) : x;
  const std::int64_t rows = input.elements / inputs;
  std::vector<Saved> saved{save(input)};
  if (autocast_) saved.push_back(save(weight.cast));
  Tensor y = value(checked_mul(rows, outputs), input.dtype, "linear");
  ensure_workspace();
  if (has_bias) ensure_lt_workspace();
  y = multiplied({reads(input), weight.access, added.access}, {rows, outputs, inputs}, std::move(y));
  y.is_view = true;  // of the matrix that the product made
  added.edge.sum = Edge::Sum::over_rows;
  std::vector<Edge> edges;
  if (!has_bias) edges = {std::move(weight.edge), edge_to(input)};
  if (has_bias) edges = {edge_to(input), std::move(weight.edge), std::move(added.edge)};
  const auto backward = [this, rows, inputs, outputs, has_bias, by = weight.access, dtype = input.dtype](
                            Tensor& g, const std::vector<Tensor>& kept) {
    const bool is_cast = kept.size() > 1;
    const auto of_input = [&] {
      Tensor dx = value(rows * inputs, dtype, "input gradient");
      ensure_workspace();
      dx = multiplied({reads(g), is_cast ? reads(kept[1]) : by}, {rows, inputs, outputs}, std::move(dx));
      dx.is_view = true;
      return dx;
    };
    const auto of_weight = [&] {
      Tensor dw =
          heap_.make(inputs * outputs, dtype, is_cast ? Category::temporaries : Category::gradients, "weight gradient");
      ensure_workspace();
      dw = multiplied({reads(g), reads(kept[0])}, {outputs, inputs, rows}, std::move(dw));
      dw.is_view = true;  // transposed
      return dw;
    };
    std::vector<Tensor> gradients;
    if (has_bias) gradients.push_back(of_input());
    gradients.push_back(of_weight());
    gradients.push_back(has_bias ? g : of_input());
    return gradients;
  };
  y = record(std::move(y), std::move(edges), std::move(saved), backward);
  y.made_by->parameters_first = has_bias;
  return y;
}

Tensor Torch::linear(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias) {
  if (autocast_ || bias >= 0) return linear_of_operands(x, parameter, inputs, outputs, bias);
  const std::int64_t rows = x.elements / inputs;
  std::vector<Saved> saved{save(x)};
  SelectiveCache* const cache = checkpoints_.cache;
  const bool is_kept = cache != nullptr && cache->keeps(Kept::matmul);
  Tensor y;
  if (is_kept && cache->is_recomputing()) {
    y = cache->take(Kept::matmul).front();
  } else {
    y = value(checked_mul(rows, outputs), x.dtype, "linear");
    ensure_workspace();
    y = multiplied({reads(x), reads_parameter(parameter)}, {rows, outputs, inputs}, std::move(y));
    if (is_kept) cache->put(Kept::matmul, {y});
  }
  y.is_view = true;  // of the matrix that the product made
  const Dtype dtype = x.dtype;
  const std::int64_t weight = checked_mul(inputs, outputs);
  return record(std::move(y), {edge_to(parameter, weight), edge_to(x)}, std::move(saved),
                [this, rows, inputs, outputs, weight, dtype, parameter](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor dw = heap_.make(weight, dtype, Category::gradients, "weight gradient");
                  ensure_workspace();
                  dw = multiplied({reads(g), reads(kept[0])}, {outputs, inputs, rows}, std::move(dw));
                  dw.is_view = true;  // transposed
                  Tensor dx = multiplied({reads(g), reads_parameter(parameter)}, {rows, inputs, outputs},
                                         value(rows * inputs, dtype, "input gradient"));
                  dx.is_view = true;
                  return std::vector<Tensor>{std::move(dw), std::move(dx)};
                });
}

}  // namespace vramfit::eager
