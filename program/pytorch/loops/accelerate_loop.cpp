// A loop of one's own with accelerate (1.15), as its examples are written and configs/recipes/accelerate_*.py have it.
#include <utility>

#include "program/pytorch/loops/accelerator_loop.h"

namespace vramfit::eager {

namespace {

class AccelerateLoop final : public AcceleratorLoop {
 public:
  using AcceleratorLoop::AcceleratorLoop;

  void micro_batch(Place place) override {
    parts_.enter(Phase::forward);
    next_inputs();
    parts_.wrapper.sync_gradients(place.is_last);
    backward_of(loss_of_model(inputs_, {}), place.is_last);
  }

  /// A GradScaler divides gradients before a step in any case.
  void update() override {
    parts_.enter(Phase::clip);
    unscale_gradients();
    if (parts_.clip) clipped();
    step();
  }

 private:
  /// The loop's variable holds a batch until it is given the next one, which DataLoaderShard has moved by then. What
  /// stays is the first, as a program must leave the same buffers after each step.
  void next_inputs() {
    Inputs next = moved_inputs();
    if (!inputs_.ids.storage) inputs_ = std::move(next);
  }

  Inputs inputs_;
};

}  // namespace

std::unique_ptr<Loop> make_accelerate_loop(LoopParts parts) {
  return std::make_unique<AccelerateLoop>(std::move(parts));
}

}  // namespace vramfit::eager
