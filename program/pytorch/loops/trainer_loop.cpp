// On one GPU, mixed precision is autocast; with FSDP2 it is FSDP2's.
#include "program/pytorch/loops/trainer_loop.h"

#include <optional>
#include <utility>

#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

void TrainerLoop::micro_batch(Place place) {
  parts_.enter(Phase::forward);
  if (place.is_first) begin_step();
  parts_.wrapper.sync_gradients(place.is_last);
  const Inputs& inputs = batches_[next_++];
  Tensor loss = loss_of(inputs);
  Tensor whole = detached(loss);
  backward_of(std::move(loss), place.is_last);
  if (!loss_.storage) loss_ = whole;
  whole = {};
  parts_.enter(Phase::loss);
  look_at_loss();
}

void TrainerLoop::backward_of(Tensor loss, bool /*is_last*/) {
  {
    const Scope scope(heap(), "loss");
    loss = torch().divide(loss);  // whatever the number of micro-batches
  }
  parts_.enter(Phase::backward);
  const Tensor root = scales_loss() ? scaler_.scaled(torch(), loss) : loss;
  torch().backward(root, [this] { parts_.wrapper.finish_backward(); });
}

void TrainerLoop::update() {
  parts_.enter(Phase::clip);
  norm_ = {};
  if (scales_loss()) scaler_.unscale(torch(), parts_.wrapper, is_sharded());
  norm_ = clip_gradients(torch(), parts_.wrapper);  // without a limit, too, for its log (_get_grad_norm)
  {
    Tensor mark;
    if (scales_loss() && skips_on_card()) mark = scaler_.mark_for_optimizer(torch());
    step_optimizer();
  }
  if (scales_loss()) scaler_.update(heap());
  parts_.wrapper.zero_gradients();
}

// Where Python gives a name to another tensor of the same size and lets go of the one before, the one before stays
// here and the other is let go of: a program must leave the same buffers after each step.

/// get_batch_samples: all micro-batches of the step, then how many labels count in them.
void TrainerLoop::begin_step() {
  heap().values = Category::activations;
  std::vector<Inputs> batches;
  for (std::int64_t i = 0; i < parts_.job.accumulation; ++i) {
    Inputs inputs;
    inputs.ids = tokens("ids");
    inputs.mask = tokens("mask");
    inputs.labels = tokens("labels");
    batches.push_back(std::move(inputs));
  }
  const Tensor items = counted_labels(batches);
  if (!items_.storage) items_ = items;
  if (batches_.empty()) batches_ = std::move(batches);
  next_ = 0;
}

Tensor TrainerLoop::numbers(const char* call, const Accesses& inputs, std::int64_t count, Dtype dtype,
                            const char* what) {
  return torch().computed(call, inputs, heap().make(count, dtype, Category::logits_and_loss, what));
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
Tensor TrainerLoop::summed_over_ranks(Tensor x) {
  const Dtype dtype = x.dtype;
  Tensor own = number("aten::clone", {reads(x)}, dtype, "number of this rank");
  const Tensor all = heap().make(ranks(), dtype, Category::logits_and_loss, "numbers of all ranks");
  heap().wait(heap().start(program::Collective::all_gather, program::Axis::data, {writes(all), reads(own)},
                           Stream::compute, dtype_bytes(dtype)),
              Stream::compute);
  own = {};
  x = {};
  return number("aten::sum", {reads(all)}, dtype, "sum over ranks");
}

/// Padded by one and shifted, so that every token predicts the next; a copy where rows don't follow each other.
Tensor TrainerLoop::shifted(const Tensor& labels, Tensor& padded) {
  const Job& job = parts_.job;
  padded = numbers("aten::constant_pad_nd", {reads(labels)}, checked_mul(job.micro_batch, job.sequence + 1), Dtype::i64,
                   "padded labels");
  if (job.micro_batch == 1) return padded;
  return numbers("aten::clone", {reads(padded)}, checked_mul(job.micro_batch, job.sequence), Dtype::i64,
                 "shifted labels");
}

/// ForCausalLMLoss: the sum over labels, divided by how many count.
Tensor TrainerLoop::next_token_loss(const Tensor& logits, const Tensor& labels, const Tensor& items) {
  const Tensor wide = torch().cast(logits, Dtype::f32);
  Tensor padded;
  const Tensor targets = shifted(labels, padded);
  const Tensor loss = torch().cross_entropy(wide, targets);
  return has_policy() ? torch().divide_by(loss, items) : torch().divide(loss);
}

/// The model's forward, which ends with its loss; accelerate's autocast around it widens what it returns.
Tensor TrainerLoop::loss_of(const Inputs& inputs) {
  const Precision& precision = parts_.job.precision;
  Tensor logits, loss;
  {
    Tensor items;
    if (has_policy()) items = number("aten::_to_copy", {reads(items_)}, precision.compute, "labels that count, cast");
    const Autocast autocast(torch(), is_autocast() ? std::optional(precision.compute) : std::nullopt);
    logits = forward(inputs.ids, inputs.mask, items);
    parts_.enter(Phase::loss);
    const Scope scope(heap(), "loss");
    loss = parts_.model.has_loss_of_its_own() ? torch().cross_entropy(logits, inputs.labels)
                                              : next_token_loss(logits, inputs.labels, items);
    parts_.model.leave();
  }
  const Scope scope(heap(), "loss");
  if (is_autocast()) logits = torch().cast(logits, Dtype::f32);
  if (has_policy()) loss = torch().cast(loss, precision.compute);
  parts_.wrapper.end_forward(loss);
  parts_.wrapper.wrap_outputs(loss, logits);
  return torch().scale_in_place(loss);  // by the number of processes
}

/// logging_nan_inf_filter
void TrainerLoop::look_at_loss() {
  const Scope scope(heap(), "loss");
  { const Tensor flag = number("aten::isnan", {reads(loss_)}, Dtype::u8, "is it a number"); }
  const Tensor magnitude = number("aten::abs", {reads(loss_)}, loss_.dtype, "magnitude");
  const Tensor flag = number("aten::eq", {reads(magnitude)}, Dtype::u8, "is it finite");
}

std::unique_ptr<Loop> make_trainer_loop(LoopParts parts) { return std::make_unique<TrainerLoop>(std::move(parts)); }

}  // namespace vramfit::eager
