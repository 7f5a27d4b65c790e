// A Trainer's loop with DeepSpeed (0.19), whose engine runs backward and makes the step itself
// (accelerate/utils/deepspeed.py: DeepSpeedEngineWrapper.backward). What the model computes in is what it is stored in:
// there is no autocast.
#pragma once

#include <utility>

#include "program/pytorch/loops/trainer_loop.h"

namespace vramfit::eager {

/// `Base`: a TrainerLoop, whose losses these are.
template <typename Base>
class UnderDeepSpeed final : public Base {
 public:
  using Base::Base;

  /// The last micro-batch's backward does it, before the loop looks at the loss.
  void update() override {}

 private:
  /// The loss lives until the step is done; backward is that of its product with a scale, which is a number on
  /// the host, and 1 in bf16 (deepspeed/runtime/fp16/loss_scaler.py: scale_loss). A step whose gradients overflow in
  /// fp16 ends before the update; one that updates needs more.
  void backward_of(Tensor loss, bool is_last) override {
    const LoopParts& parts = this->parts_;
    Torch::KeptWithLoss kept;  // as long as the loss
    {
      const Scope scope(this->heap(), "loss");
      const Tensor scaled = this->torch().scale(loss);
      parts.enter(Phase::backward);
      kept = this->torch().backward(scaled, [] {});
      parts.wrapper.finish_backward();
    }
    if (is_last) parts.wrapper.step(parts.clip, parts.enter, [this] { this->step_optimizer(); });
    kept.clear();
    loss = {};
    parts.wrapper.forget_graph();
  }
};

}  // namespace vramfit::eager
