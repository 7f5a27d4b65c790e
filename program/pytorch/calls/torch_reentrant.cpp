// Activation checkpointing that re-enters autograd (torch/utils/checkpoint.py: CheckpointFunction). The other form is
// in checkpoint.h.
#include <memory>
#include <utility>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// The node has the body as an attribute. What the second run's graph keeps goes with it, when backward returns.
Tensor Torch::reentrant_checkpoint(CheckpointBody body, const Tensor& x) {
  const bool had_gradients = std::exchange(has_gradients_, false);
  Tensor y = body(x);
  has_gradients_ = had_gradients;
  std::vector<Saved> saved{save(x, true)};
  const auto code = std::make_shared<const CheckpointBody>(std::move(body));
  return record(std::move(y), {edge_to(x)}, std::move(saved), [this, code](Tensor& g, const std::vector<Tensor>& kept) {
    kept_.push_back(code);
    KeptWithLoss outer = std::exchange(kept_, {});
    Tensor gradient;
    Tensor input = detached(kept[0]);
    input.wants_gradient = true;
    input.made_by = leaf([&gradient](Tensor& of_input) { gradient = std::move(of_input); });
    const Tensor again = (*code)(input);
    run_backward(*this, again.made_by, g);
    kept_ = std::move(outer);
    return std::vector<Tensor>{std::move(gradient)};
  });
}

}  // namespace vramfit::eager
