// Norms: the weights of those that compute in fp32, and PyTorch's own layer_norm and rms_norm.
#include <utility>

#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

Tensor Torch::multiply_rows_by(int parameter, Dtype dtype, const Tensor& x, std::int64_t width, Factor parameter_is) {
  const bool x_wants = x.wants_gradient, is_trained_too = is_trained(parameter);
  std::vector<Saved> saved{save(x, is_trained_too), save_hooked(parameter, x_wants)};
  Edge weight = edge_to(parameter, width), input = edge_to(x);
  weight.sum = Edge::Sum::over_rows;
  input.dtype = x.dtype;
  if (dtype != x.dtype) weight.dtype = dtype;
  Tensor product = value(x.elements, wider(dtype, x.dtype), "mul");
  return record(
      computed("aten::mul", {reads(x), reads_parameter(parameter)}, std::move(product)),
      {std::move(weight), std::move(input)}, std::move(saved), [=, this](Tensor& g, const std::vector<Tensor>& kept) {
        Tensor dx, dw;
        const auto make_dx = [&] {
          if (!x_wants) return;
          dx = computed("aten::mul", {reads(g), reads_hooked(kept[1], parameter)}, make_like(g, "mul gradient"));
        };
        if (parameter_is == Factor::first) make_dx();
        if (is_trained_too) {
          dw = computed("aten::mul", {reads(g), reads(kept[0])},
                        temporary(g.elements, g.dtype, "weight gradient of each row"));
        }
        if (parameter_is == Factor::second) make_dx();
        return std::vector<Tensor>{std::move(dw), std::move(dx)};
      });
}

Tensor Torch::multiply_by_parameter(const Tensor& x, int parameter, Dtype dtype, std::int64_t width) {
  return multiply_rows_by(parameter, dtype, x, width, Factor::second);
}

Tensor Torch::parameter_times(int parameter, Dtype dtype, const Tensor& x, std::int64_t width) {
  return multiply_rows_by(parameter, dtype, x, width, Factor::first);
}

Tensor Torch::widened(int parameter, Dtype dtype, std::int64_t width) {
  Tensor wide = value(width, Dtype::f32, "weight, widened");
  return record(computed("aten::_to_copy", {reads_parameter(parameter)}, std::move(wide)), {edge_to(parameter, width)},
                {}, [this, dtype](Tensor& g, const std::vector<Tensor>&) {
                  Tensor narrow = heap_.make(g.elements, dtype, Category::gradients, "weight gradient");
                  return std::vector<Tensor>{computed("aten::_to_copy", {reads(g)}, std::move(narrow))};
                });
}

Torch::Operand Torch::wide_operand(int parameter, Dtype dtype, std::int64_t width) {
  if (dtype == Dtype::f32) return {{}, reads_parameter(parameter), edge_to(parameter, width)};
  Tensor cast = widened(parameter, dtype, width);
  const program::Access access = reads(cast);
  Edge edge = edge_to(cast);
  return {std::move(cast), access, std::move(edge)};
}

Tensor Torch::one_plus(int parameter, Dtype dtype, std::int64_t width) {
  Operand weight = wide_operand(parameter, dtype, width);
  return record(computed("aten::add", {weight.access}, value(width, Dtype::f32, "weight and one")),
                {std::move(weight.edge)}, {},
                [](Tensor& g, const std::vector<Tensor>&) { return std::vector<Tensor>{g}; });
}

/// The gradients of weight and bias over many rows: sums of each block of rows first, whose sums take the places of the
/// vectors that were made for them.
void Torch::sum_blocks(std::int64_t blocks, std::array<Tensor, 2>& vectors, const std::array<Edge, 2>& edges) {
  std::array<Tensor, 2> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = temporary(checked_mul(blocks, vectors[i].elements), vectors[i].dtype, "sums of blocks");
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (vectors[i].storage) vectors[i] = sum_to(parts[i], edges[i]);
  }
}

/// native_layer_norm (ATen/native/cuda/layer_norm_kernel.cu). Autocast converts arguments to fp32, from the last to the
/// first. Backward makes all three gradients in one call.
Tensor Torch::layer_norm(const Tensor& x, const NormWeights& by) {
  const Dtype dtype = autocast_ ? by.dtype : Dtype::f32;  // nothing is converted without autocast
  Operand bias = wide_operand(by.bias, dtype, by.width), weight = wide_operand(by.weight, dtype, by.width);
  const Tensor input = autocast_ ? cast(x, Dtype::f32) : x;
  const std::int64_t rows = input.elements / by.width;
  Tensor y = make_like(input, "layer_norm");
  const Tensor mean = value(rows, Dtype::f32, "mean"), rstd = value(rows, Dtype::f32, "rstd");
  heap_.run("aten::native_layer_norm",
            {reads(input), weight.access, bias.access, writes(y), writes(mean), writes(rstd)});
  const bool x_wants = input.wants_gradient, weight_wants = weight.edge.wanted, bias_wants = bias.edge.wanted;
  const bool wants = x_wants || weight_wants || bias_wants;
  std::vector<Saved> saved{save(input, wants), save(weight.cast, wants), save(mean, wants), save(rstd, wants)};
  saved.push_back(save(bias.cast, wants));
  const bool is_cast = weight.cast.elements != 0;
  std::array sums{weight.edge, bias.edge};
  for (Edge& sum : sums) sum.sum = Edge::Sum::over_rows;
  const Dtype weight_dtype = is_cast ? Dtype::f32 : by.dtype;
  return record(std::move(y), {edge_to(input), std::move(weight.edge), std::move(bias.edge)}, std::move(saved),
                [=, this, width = by.width, own = weight.access](Tensor& g, const std::vector<Tensor>& kept) {
                  const Category category = is_cast ? Category::temporaries : Category::gradients;
                  const auto vector = [&](const char* what) { return heap_.make(width, weight_dtype, category, what); };
                  Tensor dx;
                  std::array<Tensor, 2> vectors;
                  if (x_wants) dx = make_like(g, "layer_norm gradient");
                  if (weight_wants) vectors[0] = vector("weight gradient");
                  if (bias_wants) vectors[1] = vector("bias gradient");
                  heap_.run("aten::native_layer_norm_backward",
                            {reads(g), reads(kept[0]), is_cast ? reads(kept[1]) : own, reads(kept[2]), reads(kept[3]),
                             writes(dx), writes(vectors[0]), writes(vectors[1])});
                  if (const std::int64_t blocks = layer_norm_blocks(rows, width, device_); blocks > 0) {
                    sum_blocks(blocks, vectors, sums);
                  }
                  return std::vector<Tensor>{std::move(dx), std::move(vectors[0]), std::move(vectors[1])};
                });
}

/// _fused_rms_norm (ATen/native/cuda/layer_norm_kernel.cu), whose backward is layer_norm's without a bias.
Tensor Torch::rms_norm(const Tensor& x, int weight, std::int64_t width) {
  const std::int64_t rows = x.elements / width;
  Operand by{{}, reads_parameter(weight), edge_to(weight, width)};
  const bool x_wants = x.wants_gradient, weight_wants = by.edge.wanted, wants = x_wants || weight_wants;
  std::vector<Saved> saved{save(x, wants), save({}, wants)};  // and the weight, before it runs
  Tensor y = make_like(x, "rms_norm");
  const Tensor rstd = value(rows, Dtype::f32, "rstd");
  heap_.run("aten::_fused_rms_norm", {reads(x), by.access, writes(y), writes(rstd)});
  saved.push_back(save(rstd, wants));
  std::array sums{by.edge, Edge{}};
  sums[0].sum = Edge::Sum::over_rows;
  return record(std::move(y), {edge_to(x), std::move(by.edge)}, std::move(saved),
                [=, this, own = by.access](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor dx;
                  std::array<Tensor, 2> vectors;
                  if (x_wants) dx = make_like(g, "rms_norm gradient");
                  if (weight_wants) vectors[0] = heap_.make(width, g.dtype, Category::gradients, "weight gradient");
                  heap_.run("aten::_fused_rms_norm_backward",
                            {reads(g), reads(kept[0]), own, reads(kept[2]), writes(dx), writes(vectors[0])});
                  const std::int64_t blocks = weight_wants ? layer_norm_blocks(rows, width, device_) : 0;
                  if (blocks > 0) sum_blocks(blocks, vectors, sums);
                  return std::vector<Tensor>{std::move(dx), std::move(vectors[0])};
                });
}

}  // namespace vramfit::eager
