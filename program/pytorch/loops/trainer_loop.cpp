// The loop of transformers' Trainer (5.23) with its defaults, accelerate's part in it, and the loss that its models
// compute (loss/loss_utils.py: ForCausalLMLoss). On one GPU, mixed precision is autocast; with FSDP2 it is FSDP2's.
#include <optional>
#include <utility>
#include <vector>

#include "program/pytorch/loops/loop.h"
#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

namespace {

struct Inputs {
  Tensor ids, mask, labels;
};

class TrainerLoop final : public Loop {
 public:
  using Loop::Loop;

  void micro_batch(Place place) override {
    parts_.enter(Phase::forward);
    if (place.is_first) begin_step();
    parts_.wrapper.sync_gradients(place.is_last);
    const Inputs& inputs = batches_[next_++];
    Tensor loss = loss_of(inputs);
    Tensor whole = detached(loss);
    {
      const Scope scope(heap(), "loss");
      loss = torch().divide(loss);  // accelerator.backward, whatever the number of micro-batches
    }
    parts_.enter(Phase::backward);
    torch().backward(loss, [this] { parts_.wrapper.finish_backward(); });
    loss = {};
    if (!loss_.storage) loss_ = whole;
    whole = {};
    parts_.enter(Phase::loss);
    look_at_loss();
  }

  void update() override {
    parts_.enter(Phase::clip);
    norm_ = {};
    norm_ = clip_gradients(torch(), parts_.wrapper);  // without a limit, too, for its log (_get_grad_norm)
    step_optimizer();
    parts_.wrapper.zero_gradients();
  }

 private:
  // Where Python gives a name to another tensor of the same size and lets go of the one before, the one before stays
  // here and the other is let go of: a program must leave the same buffers after each step.

  /// get_batch_samples: all micro-batches of the step, then how many labels count in them.
  void begin_step() {
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

  Tensor number(const char* call, const Accesses& inputs, Dtype dtype, const char* what) {
    return torch().computed(call, inputs, heap().make(1, dtype, Category::logits_and_loss, what));
  }

  /// sum(labels[..., 1:].ne(-100).sum() for labels in batches) / 1
  Tensor counted_labels(const std::vector<Inputs>& batches) {
    const Scope scope(heap(), "labels that count");
    const std::int64_t count = checked_mul(parts_.job.micro_batch, parts_.job.sequence - 1);
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

  std::int64_t ranks() const { return checked_mul(parts_.job.mesh.shard, parts_.job.mesh.replicate); }

  /// accelerator.gather(total).sum() (accelerate/utils/operations.py: _gpu_gather)
  Tensor summed_over_ranks(const Tensor& total) {
    Tensor own = number("aten::clone", {reads(total)}, Dtype::i64, "labels of this rank");
    const Tensor all = heap().make(ranks(), Dtype::i64, Category::logits_and_loss, "labels of all ranks");
    heap().wait(heap().start(program::Collective::all_gather, program::Axis::data, {writes(all), reads(own)},
                             Stream::compute, dtype_bytes(Dtype::i64)),
                Stream::compute);
    own = {};
    return number("aten::sum", {reads(all)}, Dtype::i64, "labels of all ranks, summed");
  }

  /// Padded by one and shifted, so that every token predicts the next; a copy where rows don't follow each other.
  Tensor shifted(const Tensor& labels, Tensor& padded) {
    const Job& job = parts_.job;
    padded = heap().make(checked_mul(job.micro_batch, job.sequence + 1), Dtype::i64, Category::logits_and_loss,
                         "padded labels");
    heap().run("aten::constant_pad_nd", {reads(labels), writes(padded)});
    if (job.micro_batch == 1) return padded;
    const Tensor rows = heap().make(checked_mul(job.micro_batch, job.sequence), Dtype::i64, Category::logits_and_loss,
                                    "shifted labels");
    heap().run("aten::clone", {reads(padded), writes(rows)});
    return rows;
  }

  bool is_sharded() const { return parts_.job.runtime == Runtime::pytorch_fsdp2; }

  /// FSDP2 converts what its root module is passed and what it returns (accelerate sets its policy's output_dtype).
  bool has_policy() const { return is_sharded() && parts_.job.precision.compute != parts_.job.precision.storage; }

  /// The model's forward, which ends with its loss; accelerate's autocast around it widens what it returns.
  Tensor loss_of(const Inputs& inputs) {
    const Precision& precision = parts_.job.precision;
    const bool is_autocast = precision.name == "bf16-mixed" && !is_sharded();
    Tensor logits, loss;
    {
      Tensor items;
      if (has_policy()) items = number("aten::_to_copy", {reads(items_)}, precision.compute, "labels that count, cast");
      const Autocast autocast(torch(), is_autocast ? std::optional(precision.compute) : std::nullopt);
      logits = forward(inputs.ids, inputs.mask, items);
      parts_.enter(Phase::loss);
      const Scope scope(heap(), "loss");
      const Tensor wide = torch().cast(logits, Dtype::f32);
      Tensor padded;
      const Tensor targets = shifted(inputs.labels, padded);
      loss = torch().cross_entropy(wide, targets);
      loss = has_policy() ? torch().divide_by(loss, items) : torch().divide(loss);
      parts_.model.leave();
    }
    const Scope scope(heap(), "loss");
    if (is_autocast) logits = torch().cast(logits, Dtype::f32);
    if (has_policy()) loss = torch().cast(loss, precision.compute);
    parts_.wrapper.end_forward(loss);
    parts_.wrapper.wrap_outputs(loss, logits);
    return torch().scale_in_place(loss);  // by the number of processes
  }

  /// logging_nan_inf_filter
  void look_at_loss() {
    const Scope scope(heap(), "loss");
    { const Tensor flag = number("aten::isnan", {reads(loss_)}, Dtype::u8, "is it a number"); }
    const Tensor magnitude = number("aten::abs", {reads(loss_)}, loss_.dtype, "magnitude");
    const Tensor flag = number("aten::eq", {reads(magnitude)}, Dtype::u8, "is it finite");
  }

  std::vector<Inputs> batches_;
  std::size_t next_ = 0;
  Tensor items_, loss_, norm_;
};

}  // namespace

std::unique_ptr<Loop> make_trainer_loop(LoopParts parts) { return std::make_unique<TrainerLoop>(std::move(parts)); }

}  // namespace vramfit::eager
