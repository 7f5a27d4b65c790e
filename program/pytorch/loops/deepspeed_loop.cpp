// The loop of transformers' Trainer (5.23) with DeepSpeed (0.19), whose engine runs backward and makes the step itself
// (accelerate/utils/deepspeed.py: DeepSpeedEngineWrapper.backward). What the model computes in is what it is stored in:
// there is no autocast.
#include <utility>
#include <vector>

#include "program/pytorch/loops/trainer_loop.h"

namespace vramfit::eager {

namespace {

class DeepSpeedLoop final : public TrainerLoop {
 public:
  using TrainerLoop::TrainerLoop;

  /// The last micro-batch's backward does it, before the loop looks at the loss.
  void update() override {}

 private:
  /// The loss lives until the step is done; backward is that of its product with a scale, which is a number on
  /// the host, and 1 in bf16 (deepspeed/runtime/fp16/loss_scaler.py: scale_loss). A step whose gradients overflow in
  /// fp16 ends before the update; one that updates needs more.
  void backward_of(Tensor loss, bool is_last) override {
    std::vector<Tensor> leaves;  // as long as the loss
    {
      const Scope scope(heap(), "loss");
      const Tensor scaled = torch().scale(loss);
      parts_.enter(Phase::backward);
      leaves = torch().backward(scaled, [] {});
      parts_.wrapper.finish_backward();
    }
    if (is_last) parts_.wrapper.step(parts_.clip, parts_.enter, [this] { step_optimizer(); });
  }
};

}  // namespace

std::unique_ptr<Loop> make_deepspeed_loop(LoopParts parts) { return std::make_unique<DeepSpeedLoop>(std::move(parts)); }

}  // namespace vramfit::eager
