// The calls of a loss of preferences (TRL's DPOTrainer): of log-probabilities of each token and of each row.
#include <utility>

#include "program/pytorch/torch.h"

namespace vramfit::eager {

Tensor Torch::sum_of_rows(const Tensor& x, std::int64_t width) { return summed(x, x.elements / width, "sums of rows"); }

Tensor Torch::seen_as_slice(const Tensor& x) {
  Tensor seen = x;
  seen.is_view = true;
  return record(std::move(seen), {edge_to(x)}, {}, [this](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{computed("aten::slice_backward", {reads(g)}, make_like(g, "slice gradient"))};
  });
}

Tensor Torch::chosen_elements(const Tensor& x, const Tensor& mask) { return indexed(x, mask, "chosen elements"); }

}  // namespace vramfit::eager
