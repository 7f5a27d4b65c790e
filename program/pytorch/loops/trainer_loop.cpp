#include "program/pytorch/loops/trainer_loop.h"

#include <utility>

#include "program/pytorch/loops/deepspeed_loop.h"

namespace vramfit::eager {

void TrainerLoop::micro_batch(Place place) {
  parts_.enter(Phase::forward);
  if (place.is_first) begin_step();
  parts_.wrapper.sync_gradients(place.is_last);
  const Inputs& inputs = batches_[next_++];
  parts_.model.set_documents(inputs.documents);
  Tensor loss = loss_of(inputs);
  Tensor whole = detached(loss);
  backward_of(std::move(loss), place.is_last);
  if (!loss_.storage) loss_ = whole;
  whole = {};
  parts_.enter(Phase::loss);
  look_at_loss();
}

void TrainerLoop::update() {
  parts_.enter(Phase::clip);
  norm_ = {};
  unscale_gradients();
  norm_ = clipped();  // without a limit, too, for its log (_get_grad_norm)
  step();
}

/// A number for each group of the optimizer: weights that decay, and others, of which there may be none.
std::vector<Tensor> TrainerLoop::rates(const char* what) {
  constexpr int kGroups = 2;
  std::vector<Tensor> made;
  for (int i = 0; i < kGroups; ++i) {
    made.push_back(heap().make(1, Dtype::f32, Category::optimizer_state, what));
    heap().run("aten::clone", {writes(made.back())});
  }
  return made;
}

/// torchao's optimizers have learning rates as tensors, which accelerate moves to the card (optimizer.py).
void TrainerLoop::prepare() {
  if (!has_rates_on_card()) return;
  const Scope scope(heap(), "learning rates");
  for (const char* const what : {"now", "at first", "of the schedule", "last"}) {
    for (Tensor& rate : rates(what)) rates_.push_back(std::move(rate));
  }
}

/// LambdaLR.step (torch/optim/lr_scheduler.py)
void TrainerLoop::schedule() {
  if (!has_rates_on_card()) return;
  const Scope scope(heap(), "learning rates");
  const std::vector<Tensor> scheduled = rates("scheduled");
  const std::vector<Tensor> copies = rates("last, copied");
}

// Where Python gives a name to another tensor of the same size and lets go of the one before, the one before stays
// here and the other is let go of: a program must leave the same buffers after each step.

/// get_batch_samples: all micro-batches of the step, then how many labels count in them.
void TrainerLoop::begin_step() {
  std::vector<Inputs> batches;
  for (std::int64_t i = 0; i < parts_.job.accumulation; ++i) batches.push_back(moved_inputs());
  if (counts_labels()) {
    const Tensor items = counted_labels(batches);
    if (!items_.storage) items_ = items;
  }
  if (batches_.empty()) batches_ = std::move(batches);
  next_ = 0;
}

/// sum(labels[..., 1:].ne(-100).sum() for labels in batches) / 1; all labels where the loss isn't known (trainer.py:
/// _loss_shifts_labels).
Tensor TrainerLoop::counted_labels(const std::vector<Inputs>& batches) {
  const Scope scope(heap(), "labels that count");
  const std::int64_t labels_of_row = parts_.job.sequence - (parts_.model.has_known_loss() ? 1 : 0);
  const std::int64_t count = checked_mul(parts_.job.micro_batch, labels_of_row);
  Tensor total;
  for (const Inputs& inputs : batches) {
    Tensor sum;
    {
      const Tensor flags = torch().computed("aten::ne", {reads(inputs.labels)},
                                            heap().make(count, Dtype::u8, Category::temporaries, "flags"));
      sum = torch().count_true(flags);
    }
    total = number("aten::add", {reads(sum), reads(total)}, Dtype::i64, "sum over micro-batches");
  }
  if (ranks() > 1) total = summed_over_ranks(total);
  return number("aten::div", {reads(total)}, Dtype::f32, "labels that count");
}

/// accelerate/utils/operations.py: _gpu_gather
Tensor TrainerLoop::gathered_from_ranks(const Tensor& x) {
  Tensor all =
      heap().make(checked_mul(ranks(), x.elements), x.dtype, Category::logits_and_loss, "numbers of all ranks");
  heap().wait(heap().start(program::Collective::all_gather, program::Axis::data, {writes(all), reads(x)},
                           Stream::compute, x.elements * dtype_bytes(x.dtype)),
              Stream::compute);
  return all;
}

Tensor TrainerLoop::summed_over_ranks(Tensor x) {
  const Dtype dtype = x.dtype;
  const Tensor all = gathered_from_ranks(cloned_number(x));
  x = {};
  return number("aten::sum", {reads(all)}, dtype, "sum over ranks");
}

Tensor TrainerLoop::loss_of(const Inputs& inputs) {
  Tensor loss = loss_of_model(inputs, items_);
  const Scope scope(heap(), "loss");
  return torch().scale_in_place(loss);  // by the number of processes
}

/// logging_nan_inf_filter
void TrainerLoop::look_at_loss() {
  const Scope scope(heap(), "loss");
  { const Tensor flag = number("aten::isnan", {reads(loss_)}, Dtype::u8, "is it a number"); }
  const Tensor magnitude = number("aten::abs", {reads(loss_)}, loss_.dtype, "magnitude");
  const Tensor flag = number("aten::eq", {reads(magnitude)}, Dtype::u8, "is it finite");
}

std::unique_ptr<Loop> make_trainer_loop(LoopParts parts) {
  if (parts.job.runtime == Runtime::deepspeed) return std::make_unique<UnderDeepSpeed<TrainerLoop>>(std::move(parts));
  return std::make_unique<TrainerLoop>(std::move(parts));
}

}  // namespace vramfit::eager
