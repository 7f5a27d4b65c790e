// The loop that people write themselves, with torchtitan's loss: gradients are set to none before a step's first
// micro-batch, and losses are kept for a log.
#include <utility>
#include <variant>
#include <vector>

#include "program/pytorch/loops/loop.h"
#include "program/pytorch/optimizers/optimizers.h"

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

  Tensor loss_of(const Tensor& logits) {
    const Scope scope(heap(), "loss");
    const auto* chunked = std::get_if<ChunkedLoss>(&parts_.job.loss);
    return chunked == nullptr ? cross_entropy(logits, labels_) : loss_of_parts(logits, chunked->chunks);
  }

  /// cross_entropy(logits.flatten(0, 1).float(), labels)
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels) {
    return torch().cross_entropy(torch().cast(logits, Dtype::f32), labels);
  }

  /// torchtitan's loss of 2025: logits and labels are cut along the sequence (chunk(parts, dim=1)), and the mean is
  /// that of the parts' losses.
  Tensor loss_of_parts(const Tensor& logits, std::int64_t count) {
    const std::vector<Tensor> parts = torch().parts_of(logits, static_cast<std::size_t>(count));
    const std::int64_t tokens = labels_.elements / count;
    Tensor total;
    for (std::int64_t i = 0; i < count; ++i) {
      Tensor part = parts[static_cast<std::size_t>(i)];
      part.part = heap().narrow(logits, i * part.elements, part.elements).part;
      const Tensor loss = parts_.job.micro_batch == 1 ? cross_entropy(part, heap().narrow(labels_, i * tokens, tokens))
                                                      : loss_of_rows(part, tokens);
      total = i == 0 ? torch().add_scalar(loss) : torch().add_in_place(std::move(total), loss);
    }
    return torch().divide(total);
  }

  /// Of several rows a part lies in several places, so that flatten(0, 1) copies it.
  Tensor loss_of_rows(const Tensor& logits, std::int64_t tokens) {
    const Tensor wide = torch().cast(torch().clone(logits), Dtype::f32);
    const Tensor labels = torch().computed("aten::clone", {reads(labels_)},
                                           heap().make(tokens, Dtype::i64, heap().values, "labels of a part"));
    return torch().cross_entropy(wide, labels);
  }

  Tensor ids_, labels_;
};

}  // namespace

std::unique_ptr<Loop> make_plain_loop(LoopParts parts) { return std::make_unique<PlainLoop>(std::move(parts)); }

}  // namespace vramfit::eager
