// Calls of attention with sinks and of clamped gates, as transformers' gpt-oss makes them.
#include <utility>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

Tensor Torch::minus(const Tensor& a, const Tensor& b) {
  Tensor difference = value(a.elements, wider(a.dtype, b.dtype), "sub");
  return record(computed("aten::sub", {reads(a), reads(b)}, std::move(difference)), {edge_to(a), edge_to(b)}, {},
                [this, b_wants = b.wants_gradient](Tensor& g, const std::vector<Tensor>&) {
                  std::vector<Tensor> gradients{g, {}};
                  if (b_wants) gradients[1] = computed("aten::neg", {reads(g)}, make_like(g, "sub gradient of other"));
                  return gradients;
                });
}

Tensor Torch::minus_rows(const Tensor& x, const Tensor& numbers) {
  Tensor difference = minus(x, numbers);
  if (difference.made_by != nullptr) difference.made_by->next[1].sum = Edge::Sum::over_columns;
  return difference;
}

/// More than 2 GiB are read in parts, between which each row's number and place are kept (Reduce.cuh:
/// AccumulationBuffer). Backward puts each row's gradient where its largest number was.
Tensor Torch::largest_of_rows(const Tensor& x, std::int64_t width) {
  constexpr std::int64_t kNumberAndPlace = 16;
  const std::int64_t rows = x.elements / width;
  Tensor values = value(rows, x.dtype, "max");
  const Tensor places = value(rows, Dtype::i64, "max indices");
  const bool is_in_parts = x.elements * dtype_bytes(x.dtype) > 2 * kGiB;
  const Tensor so_far = temporary(is_in_parts ? checked_mul(rows, kNumberAndPlace) : 0, Dtype::u8, "largest so far");
  heap_.run("aten::max", {reads(x), writes(values), writes(places)});
  std::vector<Saved> saved{save(places, x.wants_gradient)};
  return record(std::move(values), {edge_to(x)}, std::move(saved),
                [this, n = x.elements](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor whole = value(n, g.dtype, "max gradient");
                  heap_.run("aten::zeros", {writes(whole)});
                  heap_.run("aten::scatter_", {reads(g), reads(kept[0]), changes(whole)},
                            {.bytes = 3 * heap_.bytes_of({reads(g)})});
                  return std::vector<Tensor>{std::move(whole)};
                });
}

/// The sinks are only seen as many (expand), whose gradient is summed for each head. cat gives each its part.
Tensor Torch::joined_with_sinks(const Tensor& x, std::int64_t width, int parameter, std::int64_t heads) {
  Tensor sinks;
  sinks.elements = x.elements / width;
  sinks.dtype = parameters_.at(static_cast<std::size_t>(parameter)).dtype;
  sinks.is_view = true;
  sinks = record(std::move(sinks), {edge_to(parameter, heads)}, {},
                 [this, heads, width](Tensor& g, const std::vector<Tensor>&) {
                   Tensor sum = heap_.make(heads, g.dtype, Category::gradients, "sum of sinks");
                   // Its numbers are a row's length from each other (sum_to).
                   const Bytes span = checked_mul(g.elements - 1, width + 1) * dtype_bytes(g.dtype);
                   const bool is_in_parts = span >= 2 * kGiB && g.dtype != Dtype::f32;
                   const Tensor so_far = temporary(is_in_parts ? heads : 0, Dtype::f32, "sums so far");
                   return std::vector<Tensor>{computed("aten::sum", {reads(g)}, std::move(sum))};
                 });
  Tensor both = value(checked_add(x.elements, sinks.elements), wider(x.dtype, sinks.dtype), "cat");
  const bool x_wants = x.wants_gradient, sinks_want = sinks.wants_gradient;
  return record(computed("aten::cat", {reads(x), reads_parameter(parameter)}, std::move(both)),
                {edge_to(x), edge_to(sinks)}, {},
                [x_wants, sinks_want, n = x.elements, rows = sinks.elements](Tensor& g, const std::vector<Tensor>&) {
                  std::vector<Tensor> gradients(2);
                  const auto part = [&](std::int64_t elements) {
                    Tensor seen = g;
                    seen.elements = elements;
                    seen.is_view = true;
                    return seen;
                  };
                  if (x_wants) gradients[0] = part(n);
                  if (sinks_want) gradients[1] = part(rows);
                  return gradients;
                });
}

/// Backward asks anew which numbers were within bounds (FunctionsManual.cpp: clamp_backward).
Tensor Torch::clamp(const Tensor& x, int bounds) {
  std::vector<Saved> saved{save(x, x.wants_gradient)};
  return record(computed("aten::clamp", {reads(x)}, make_like(x, "clamp")), {edge_to(x)}, std::move(saved),
                [this, bounds](Tensor& g, const std::vector<Tensor>& kept) {
                  const Tensor zero = computed("aten::scalar_tensor", {}, temporary(1, g.dtype, "zero"));
                  const auto within = [&](const char* what) { return temporary(g.elements, Dtype::u8, what); };
                  const Tensor least = bounds > 1 ? computed("aten::ge", {reads(kept[0])}, within("not below")) : zero;
                  const Tensor most = computed("aten::le", {reads(kept[0])}, within("not above"));
                  return std::vector<Tensor>{computed("aten::where", {reads(least), reads(most), reads(g), reads(zero)},
                                                      make_like(g, "clamp gradient"))};
                });
}

Tensor Torch::sigmoid(const Tensor& x) {
  Tensor y = computed("aten::sigmoid", {reads(x)}, make_like(x, "sigmoid"));
  std::vector<Saved> saved{save(y, x.wants_gradient)};
  return record(std::move(y), {edge_to(x)}, std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
    return std::vector<Tensor>{
        computed("aten::sigmoid_backward", {reads(g), reads(kept[0])}, make_like(g, "sigmoid gradient"))};
  });
}

}  // namespace vramfit::eager
