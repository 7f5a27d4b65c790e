// Products with parameters: linear layers, with a bias and under autocast.
#include <utility>

#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/torch.h"

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

Tensor Torch::multiplied_batch(Accesses inputs, std::int64_t batch, const WorkShape& shape, Dtype dtype) {
  ensure_workspace();
  Tensor output = value(checked_mul(batch, checked_mul(shape.rows, shape.columns)), dtype, "bmm");
  inputs.push_back(writes(output));
  const double sums = static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
  heap_.run("aten::bmm", inputs,
            {.unit = Work::Unit::product,
             .dtype = dtype,
             .flops = 2 * static_cast<double>(batch) * sums * static_cast<double>(shape.inner),
             .bytes = heap_.bytes_of(inputs),
             .shape = shape});
  return output;
}

/// Backward makes the second factor's gradient first.
Tensor Torch::batched_product(const Tensor& a, const Tensor& b, std::int64_t batch, const WorkShape& shape) {
  const bool a_wants = a.wants_gradient, b_wants = b.wants_gradient;
  std::vector<Saved> saved{save(a, b_wants), save(b, a_wants)};
  return record(multiplied_batch({reads(a), reads(b)}, batch, shape, a.dtype), {edge_to(b), edge_to(a)},
                std::move(saved), [=, this](Tensor& g, const std::vector<Tensor>& kept) {
                  const auto [rows, columns, inner] = shape;
                  std::vector<Tensor> gradients(2);
                  if (b_wants) {
                    gradients[0] = multiplied_batch({reads(g), reads(kept[0])}, batch, {inner, columns, rows}, g.dtype);
                  }
                  if (a_wants) {
                    gradients[1] = multiplied_batch({reads(g), reads(kept[1])}, batch, {rows, inner, columns}, g.dtype);
                  }
                  return gradients;
                });
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
  Tensor& known = cast_parameters_[parameter];
  if (known.elements != 0) return known;
  Tensor cast =
      record(computed("aten::_to_copy", {reads_parameter(parameter)}, value(elements, *autocast_, "weight, cast")),
             {edge_to(parameter, elements)}, {}, [this](Tensor& g, const std::vector<Tensor>&) {
               Tensor wide = heap_.make(g.elements, Dtype::f32, Category::gradients, "weight gradient");
               return std::vector<Tensor>{computed("aten::_to_copy", {reads(g)}, std::move(wide))};
             });
  if (is_trained(parameter)) known = cast;  // a frozen one is converted again (ATen/autocast_mode.cpp: cached_cast)
  return cast;
}

void Torch::set_autocast(std::optional<Dtype> dtype) {
  autocast_ = dtype;
  cast_parameters_.clear();
  cast_leaves_.clear();
}

/// What no node made is converted once, as parameters are, if it needs a gradient (ATen/autocast_mode.cpp:
/// cached_cast).
Tensor Torch::factor_of(const Tensor& x) {
  if (!autocast_) return x;
  const bool is_leaf = x.made_by != nullptr && x.made_by->sequence == Node::kLeaf;
  if (!is_leaf || !x.wants_gradient || x.dtype != Dtype::f32) return cast(x, *autocast_);
  Tensor& known = cast_leaves_[x.made_by.get()];
  if (known.elements == 0) known = cast(x, *autocast_);
  return known;
}

Torch::Operand Torch::operand(int parameter, std::int64_t elements) {
  if (!autocast_ || parameters_.at(static_cast<std::size_t>(parameter)).dtype == *autocast_)
    return {{}, reads_parameter(parameter), edge_to(parameter, elements)};
  Tensor cast = cast_parameter(parameter, elements);
  const program::Access access = reads(cast);
  Edge edge = edge_to(cast);
  return {std::move(cast), access, std::move(edge)};
}

/// mm, or with a bias addmm. Autocast converts arguments from the last to the first.
Tensor Torch::linear(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias) {
  if (has_replaced_layers()) return hooked_linear(x, parameter, inputs, outputs, bias);
  Factors factors;
  factors.has_bias = bias >= 0;
  if (factors.has_bias) factors.added = operand(bias, outputs);
  factors.weight = operand(parameter, checked_mul(inputs, outputs));
  factors.input = factor_of(x);
  return product_of(std::move(factors), inputs, outputs);
}

/// addmm's arguments are the bias, x and the weight.
Tensor Torch::conv1d(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias) {
  Factors factors;
  factors.has_bias = true;
  factors.weight = operand(parameter, checked_mul(inputs, outputs));
  factors.input = factor_of(x);
  factors.added = operand(bias, outputs);
  return product_of(std::move(factors), inputs, outputs);
}

/// In mm's backward the weight's gradient comes first, in addmm's second; the bias gets its own before the weight does.
Tensor Torch::product_of(Factors of, std::int64_t inputs, std::int64_t outputs) {
  const Tensor& input = of.input;
  Operand &weight = of.weight, &added = of.added;
  const bool has_bias = of.has_bias;
  const std::int64_t rows = input.elements / inputs;
  const bool x_wants = input.wants_gradient, weight_wants = weight.edge.wanted, is_cast = weight.cast.elements != 0;
  // A checkpoint sees the parameter too, and backward's wish for it is what may start to compute again.
  const bool keeps_weight = x_wants && (is_cast || checkpoints_.hook != nullptr);
  std::vector<Saved> saved{save(input, weight_wants), save(weight.cast, keeps_weight)};
  Tensor y = product({reads(input), weight.access, added.access}, {rows, outputs, inputs}, input.dtype, has_bias);
  std::vector<Edge> edges;
  if (has_bias) {
    added.edge.sum = Edge::Sum::over_rows;
    edges = {std::move(added.edge), edge_to(input), std::move(weight.edge)};
  } else {
    edges = {std::move(weight.edge), edge_to(input)};
  }
  const auto backward = [=, this, by = weight.access, dtype = input.dtype](Tensor& g, const std::vector<Tensor>& kept) {
    const auto multiply = [&](const Accesses& factors, const WorkShape& shape, Tensor made) {
      ensure_workspace();
      made = multiplied(factors, shape, std::move(made));
      made.is_view = true;  // of the input's shape; the weight's transposed
      return made;
    };
    const auto of_input = [&] {
      if (!x_wants) return Tensor{};
      return multiply({reads(g), is_cast ? reads(kept[1]) : by}, {rows, inputs, outputs},
                      value(rows * inputs, dtype, "input gradient"));
    };
    const auto of_weight = [&] {
      if (!weight_wants) return Tensor{};
      const Category category = is_cast ? Category::temporaries : Category::gradients;
      return multiply({reads(g), reads(kept[0])}, {outputs, inputs, rows},
                      heap_.make(inputs * outputs, dtype, category, "weight gradient"));
    };
    Tensor dx, dw;
    if (has_bias) dx = of_input();
    dw = of_weight();
    if (has_bias) return std::vector<Tensor>{g, std::move(dx), std::move(dw)};
    dx = of_input();
    return std::vector<Tensor>{std::move(dw), std::move(dx)};
  };
  y = record(std::move(y), std::move(edges), std::move(saved), backward);
  if (y.made_by != nullptr) y.made_by->parameters_first = has_bias;
  return y;
}

/// The product of a linear layer, or what selective checkpointing kept of it.
Tensor Torch::product(const Accesses& factors, const WorkShape& shape, Dtype dtype, bool has_bias) {
  SelectiveCache* const cache = checkpoints_.cache;
  const bool is_kept = cache != nullptr && cache->keeps(Kept::matmul);
  Tensor y;
  if (is_kept && cache->is_recomputing()) {
    y = cache->take(Kept::matmul).front();
  } else {
    y = value(checked_mul(shape.rows, shape.columns), dtype, "linear");
    ensure_workspace();
    if (has_bias) ensure_lt_workspace();
    y = multiplied(factors, shape, std::move(y));
    if (is_kept) cache->put(Kept::matmul, {y});
  }
  y.is_view = true;  // of the matrix that the product made
  return y;
}

}  // namespace vramfit::eager
