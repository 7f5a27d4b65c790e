// The calls of a loss of preferences (TRL's DPOTrainer): of log-probabilities of each token and of each row.
#include <utility>

#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/torch.h"

namespace vramfit::eager {

Tensor Torch::sum_of_rows(const Tensor& x, std::int64_t width) {
  const std::int64_t rows = x.elements / width;
  Tensor sums = value(rows, x.dtype, "sums of rows");
  const ReduceScratch scratch = sum_of_each_row(rows, width, device_);
  const Tensor partials = temporary(scratch.partials.n, Dtype::u8, "partial sums");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return record(computed("aten::sum", {reads(x)}, std::move(sums)), {edge_to(x)}, {},
                [n = x.elements](Tensor& g, const std::vector<Tensor>&) {
                  Tensor seen = g;
                  seen.elements = n;
                  seen.is_view = true;
                  return std::vector<Tensor>{std::move(seen)};
                });
}

Tensor Torch::seen_as_slice(const Tensor& x) {
  Tensor seen = x;
  seen.is_view = true;
  return record(std::move(seen), {edge_to(x)}, {}, [this](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{computed("aten::slice_backward", {reads(g)}, make_like(g, "slice gradient"))};
  });
}

Tensor Torch::difference(const Tensor& a, const Tensor& b) {
  return record(computed("aten::sub", {reads(a), reads(b)}, make_like(a, "sub")), {edge_to(a), edge_to(b)}, {},
                [this, b_wants = b.wants_gradient](Tensor& g, const std::vector<Tensor>&) {
                  std::vector<Tensor> gradients{g, {}};
                  if (b_wants) gradients[1] = computed("aten::neg", {reads(g)}, make_like(g, "sub gradient"));
                  return gradients;
                });
}

Tensor Torch::mean(const Tensor& x) {
  return record(computed("aten::mean", {reads(x)}, value(1, x.dtype, "mean")), {edge_to(x)}, {},
                [this, n = x.elements](Tensor& g, const std::vector<Tensor>&) {
                  return std::vector<Tensor>{computed("aten::div", {reads(g)}, value(n, g.dtype, "mean gradient"))};
                });
}

Tensor Torch::chosen_elements(const Tensor& x, const Tensor& mask) { return indexed(x, mask, "chosen elements"); }

}  // namespace vramfit::eager
