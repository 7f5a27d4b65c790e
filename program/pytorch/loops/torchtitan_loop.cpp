// Trainer.train_step of torchtitan's release 0.2 (train.py): losses are sums over tokens, divided by how many labels
// all ranks have.
#include <cstdint>
#include <utility>
#include <vector>

#include "program/pytorch/loops/loop.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit::eager {

namespace {

class TorchtitanLoop final : public Loop {
 public:
  using Loop::Loop;

  void micro_batch(Place place) override {
    parts_.enter(Phase::forward);
    heap().values = Category::activations;
    if (place.is_first) begin_step();
    labels_ = {};
    const Tensor ids = tokens("ids");
    if (!place.is_repeated) ids_.push_back(ids);
    labels_ = tokens("labels");
    Tensor logits = forward(ids);
    parts_.wrapper.end_forward(logits);
    parts_.enter(Phase::loss);
    const Tensor sum = sum_of_losses(logits);
    Tensor loss;
    {
      const Scope scope(heap(), "loss");
      loss = torch().divide(sum);
    }
    logits = {};
    parts_.enter(Phase::backward);
    torch().backward(loss, [this] { parts_.wrapper.finish_backward(); });
    if (!place.is_repeated) losses_.push_back(std::move(loss));
  }

  void update() override {
    parts_.enter(Phase::clip);
    const Tensor norm = clip_gradients(torch(), parts_.wrapper);  // whatever max_norm is
    step_optimizer();
    log();
    losses_.clear();
    labels_ = {};
    labels_of_rank_ = {};
    ids_.erase(ids_.begin(), ids_.end() - 1);  // the generator of batches holds the last one
  }

 private:
  void begin_step() {
    parts_.wrapper.zero_gradients();
    ids_.clear();
    const std::int64_t repeated = parts_.job.accumulation - 2 - kMostApartInTorchtitan;
    if (repeated > 0) {
      const std::int64_t each = checked_mul(parts_.job.micro_batch, parts_.job.sequence);
      ids_.push_back(sent(checked_mul(repeated, each), Dtype::i64, "ids of other micro-batches"));
    }
    labels_of_rank_ = sent(1, Dtype::i64, "labels of this rank");
    const Scope scope(heap(), "labels of all ranks");
    summed(labels_of_rank_);
  }

  /// funcol.all_reduce(x).item()
  void summed(const Tensor& x) {
    const Tensor copy = numbers("aten::clone", {reads(x)}, 1, x.dtype, "copy to reduce");
    heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(copy)}, Stream::compute),
                Stream::compute);
  }

  /// cross_entropy(logits.flatten(0, 1).float(), labels, reduction="sum"), whose logits in fp32 are its own.
  Tensor sum_of_losses(const Tensor& logits) {
    const Scope scope(heap(), "loss");
    return torch().cross_entropy(torch().cast(logits, Dtype::f32), labels_);
  }

  /// The step's loss, and in the first step, which is logged, as every tenth is, what ranks tell each other.
  void log() {
    const Scope scope(heap(), "log");
    Accesses losses;
    for (const Tensor& loss : losses_) losses.push_back(reads(loss));
    const auto number = [&](const char* call, const Accesses& inputs) {
      return numbers(call, inputs, 1, Dtype::f32, "of the log");
    };
    Tensor total;
    {
      const Tensor stacked =
          numbers("aten::stack", losses, static_cast<std::int64_t>(losses_.size()), Dtype::f32, "losses");
      total = number("aten::sum", {reads(stacked)});
    }
    if (std::exchange(is_logged_, true)) return;
    Tensor mean;
    {
      const Tensor own = number("aten::mul", {reads(total)});
      mean = number("aten::div", {reads(own), reads(labels_of_rank_)});
    }
    summed(total);
    summed(mean);
    summed(sent(1, Dtype::i64, "tokens seen"));
  }

  std::vector<Tensor> ids_, losses_;  // of the step's micro-batches
  Tensor labels_, labels_of_rank_;    // of a micro-batch; how many the step has
  bool is_logged_ = false;
};

}  // namespace

std::unique_ptr<Loop> make_torchtitan_loop(LoopParts parts) {
  return std::make_unique<TorchtitanLoop>(std::move(parts));
}

}  // namespace vramfit::eager
