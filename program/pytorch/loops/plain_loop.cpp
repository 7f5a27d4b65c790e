// The loop that people write themselves, with torchtitan's loss: gradients are set to none before a step's first
// micro-batch, and losses are kept for a log.
#include <utility>

#include "program/pytorch/loops/loop.h"
#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

namespace {

class PlainLoop final : public Loop {
 public:
  using Loop::Loop;

  void micro_batch(Place place) override {
    parts_.enter(Phase::forward);
    copy_inputs();
    if (place.is_first) parts_.wrapper.zero_gradients();
    Tensor logits = forward(ids_);
    parts_.wrapper.end_forward(logits);
    parts_.enter(Phase::loss);
    Tensor loss = loss_of(logits);
    logits = {};
    if (parts_.job.accumulation > 1) {
      const Scope scope(heap(), "loss");
      loss = torch().divide(loss);
    }
    parts_.enter(Phase::backward);
    torch().backward(loss, [this] { parts_.wrapper.finish_backward(); });
    heap().keep(std::move(loss));
  }

  void update() override {
    parts_.enter(Phase::clip);
    if (parts_.clip) clip_gradients(torch(), parts_.wrapper);
    step_optimizer();
  }

 private:
  /// What the micro-batch before left is let go of where Python assigns its variables again.
  void copy_inputs() {
    ids_ = {};
    labels_ = {};
    heap().values = Category::activations;
    ids_ = tokens("ids");
    labels_ = tokens("labels");
  }

  /// cross_entropy(logits.flatten(0, 1).float(), labels)
  Tensor loss_of(const Tensor& logits) {
    const Scope scope(heap(), "loss");
    return torch().cross_entropy(torch().cast(logits, Dtype::f32), labels_);
  }

  Tensor ids_, labels_;
};

}  // namespace

std::unique_ptr<Loop> make_plain_loop(LoopParts parts) { return std::make_unique<PlainLoop>(std::move(parts)); }

}  // namespace vramfit::eager
