// The calls of a loss of preferences (TRL's DPOTrainer): of log-probabilities of each token and of each row.
#include <utility>

#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

Tensor Torch::sum_of_rows(const Tensor& x, std::int64_t width) { return summed(x, x.elements / width, "sums of rows"); }

Tensor Torch::seen_as_slice(const Tensor& x) {
  Tensor seen = x;
  seen.is_view = true;
  return record(std::move(seen), {edge_to(x)}, {}, [this](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{computed("aten::slice_backward", {reads(g)}, make_like(g, "slice gradient"))};
  });
}

Tensor Torch::chosen_elements(const Tensor& x, const Tensor& mask) {
  return indexed(x, mask, mask.elements, "chosen elements");
}

Tensor Torch::chosen_numbers(const Tensor& x, const Tensor& mask) {
  return indexed(x, mask, mask.elements, "chosen numbers", 1);
}

Tensor Torch::exp(const Tensor& x) {
  Tensor y = computed("aten::exp", {reads(x)}, make_like(x, "exp"));
  std::vector<Saved> saved{save(y, x.wants_gradient)};
  return record(std::move(y), {edge_to(x)}, std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
    return std::vector<Tensor>{computed("aten::mul", {reads(g), reads(kept[0])}, make_like(g, "exp gradient"))};
  });
}

/// Of equal elements each gets half of the gradient (derivatives.yaml: minimum).
Tensor Torch::smaller(const Tensor& a, const Tensor& b) {
  std::vector<Saved> saved{save(a, a.wants_gradient), save(b, b.wants_gradient)};
  return record(computed("aten::minimum", {reads(a), reads(b)}, make_like(a, "minimum")), {edge_to(a), edge_to(b)},
                std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
                  const auto flags = [&](const char* call) {
                    return computed(call, {reads(kept[0]), reads(kept[1])}, temporary(g.elements, Dtype::u8, "which"));
                  };
                  const auto gradient = [&] {
                    const Tensor half = computed("aten::div", {reads(g)}, make_like(g, "half of the gradient"));
                    const Tensor are_equal = flags("aten::eq");
                    Tensor chosen = computed("aten::where", {reads(are_equal), reads(half), reads(g)},
                                             make_like(g, "minimum gradient"));
                    const Tensor is_larger = flags("aten::gt");
                    heap_.run("aten::masked_fill_", {reads(is_larger), changes(chosen)});
                    return chosen;
                  };
                  Tensor of_b = gradient();
                  Tensor of_a = gradient();
                  return std::vector<Tensor>{std::move(of_a), std::move(of_b)};
                });
}

Tensor Torch::elements_at(const Tensor& x, const Tensor& rows, const Tensor& columns) {
  std::vector<Saved> saved{save(rows, x.wants_gradient), save(columns, x.wants_gradient)};
  Tensor made =
      computed("aten::index", {reads(x), reads(rows), reads(columns)}, value(rows.elements, x.dtype, "chosen numbers"));
  return record(std::move(made), {edge_to(x)}, std::move(saved),
                [this, n = x.elements](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor whole = value(n, g.dtype, "index gradient");
                  heap_.run("aten::zeros", {writes(whole)});
                  const Tensor places = places_of(kept[0].elements);
                  put_sorted(g, kept[0].elements, whole);
                  return std::vector<Tensor>{std::move(whole)};
                });
}

/// Partial results are a number and its place, of 16 bytes.
Tensor Torch::places_of_largest(const Tensor& x, std::int64_t width) {
  Tensor places = value(x.elements / width, Dtype::i64, "places of the largest");
  const ReduceScratch scratch = sum_of_each_row(x.elements / width, width, device_);  // of numbers of 4 bytes
  const Tensor partials = temporary(4 * scratch.partials.n, Dtype::u8, "partial maxima");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return computed("aten::argmax", {reads(x)}, std::move(places));
}

}  // namespace vramfit::eager
