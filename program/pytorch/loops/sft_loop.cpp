// The loop of TRL's SFTTrainer (1.16): transformers' Trainer with a loss of its own, and what it computes for its log
// (trl/trainer/sft_trainer.py: compute_loss).
#include <optional>
#include <utility>

#include "program/pytorch/loops/deepspeed_loop.h"

namespace vramfit::eager {

namespace {

class SftLoop : public TrainerLoop {
 public:
  using TrainerLoop::TrainerLoop;

 private:
  /// What the patched forward returns (trl/trainer/utils.py: FusedCausalLMOutput). Its own loss, and what that is
  /// divided by, are nobody's.
  struct Outputs {
    Torch::Scores scores;
    Tensor mask, loss, divisor;
  };

  Tensor loss_of(const Inputs& inputs) override {
    const Outputs outputs = returned(forward_with_scores(inputs));
    const Scope scope(heap(), "loss");
    const Tensor losses = torch().negative(outputs.scores.log_probabilities);
    Tensor loss;
    {
      const Tensor sum = torch().sum(losses);
      const Tensor items = number("aten::clamp", {reads(this->items())}, Dtype::f32, "labels that count, at least 1");
      loss = torch().divide_by(sum, items);
    }
    loss = torch().scale(loss);  // by the number of processes
    log_metrics(inputs, outputs);
    return loss;
  }

  /// _fused_forward; accelerate's autocast around it finds nothing to widen.
  Outputs forward_with_scores(const Inputs& inputs) {
    const Precision& precision = parts_.job.precision;
    const std::int64_t count = checked_mul(parts_.job.micro_batch, parts_.job.sequence - 1);
    const Model::OutputLayer output = parts_.model.output_layer();
    const Autocast autocast(torch(), is_autocast() ? std::optional(precision.compute) : std::nullopt);
    Outputs outputs;
    const Tensor hidden = torch().part_of(forward(inputs.ids, inputs.mask), checked_mul(count, output.inputs));
    parts_.enter(Phase::loss);
    const Scope scope(heap(), "loss");
    parts_.wrapper.look_at(output.weights);  // at which device they are
    outputs.mask = numbers("aten::ne", {reads(inputs.labels)}, count, Dtype::u8, "mask of labels");
    {
      const Torch::Scores scores = scores_of(hidden, inputs.labels, outputs.mask, output);
      outputs.scores.log_probabilities = torch().scattered(scores.log_probabilities, outputs.mask);
      outputs.scores.entropy = torch().scattered(scores.entropy, outputs.mask);
      outputs.scores.is_top = torch().scattered(scores.is_top, outputs.mask);
    }
    add_own_loss(outputs);
    parts_.model.leave();
    return outputs;
  }

  Torch::Scores scores_of(const Tensor& hidden, const Tensor& labels, const Tensor& mask,
                          const Model::OutputLayer& output) {
    const Tensor weights = parts_.wrapper.gathered_alone(output.weights);
    const Tensor chosen = torch().chosen_rows(hidden, mask);
    Tensor shifted = labels;
    shifted.elements = mask.elements;
    const Tensor targets = torch().chosen_rows(shifted, mask);
    return torch().label_scores(chosen, targets, {output.weights, output.inputs, output.outputs}, weights);
  }

  void add_own_loss(Outputs& outputs) {
    Tensor negative;
    {
      const Tensor sum = torch().sum(detached(outputs.scores.log_probabilities));
      negative = number("aten::neg", {reads(sum)}, Dtype::f32, "sum, negated");
    }
    {
      const Tensor labels = torch().count_true(outputs.mask);
      outputs.divisor = number("aten::clamp", {reads(labels)}, Dtype::i64, "labels, at least 1");
    }
    outputs.loss = number("aten::div", {reads(negative), reads(outputs.divisor)}, Dtype::f32, "the model's own loss");
  }

  /// What the model's wrappers make of what it returns. FSDP2 converts it. DDP copies it, and where autograd made it,
  /// the copies take its place; their node also leads to what the model's own loss was divided by.
  Outputs returned(Outputs outputs) {
    const Scope scope(heap(), "loss");
    Torch::Scores& scores = outputs.scores;
    Outputs made = outputs;
    if (converts_outputs()) {
      const Dtype dtype = parts_.job.precision.compute;
      made.loss = torch().cast(outputs.loss, dtype);
      made.scores.log_probabilities = torch().cast(scores.log_probabilities, dtype);
      made.scores.entropy = torch().cast(scores.entropy, dtype);
    }
    parts_.wrapper.end_forward(scores.log_probabilities);  // before it is converted
    made.scores.log_probabilities = parts_.wrapper.leave_model(std::move(made.scores.log_probabilities));
    if (parts_.wrapper.copies_outputs()) {
      made.loss = torch().clone(outputs.loss);
      made.scores.log_probabilities = torch().clone_keeping(scores.log_probabilities, outputs.divisor);
      made.scores.entropy = torch().clone(scores.entropy);
      const Tensor is_top = torch().clone(scores.is_top), mask = torch().clone(outputs.mask);
      made.divisor = {};
    }
    return made;
  }

  /// accelerator.gather_for_metrics(x).sum(), which gathers from a single rank of DeepSpeed's, too.
  Tensor total(Tensor x) {
    const bool gathers = ranks() > 1 || parts_.job.runtime == Runtime::deepspeed;
    return gathers ? summed_over_ranks(std::move(x)) : number("aten::sum", {reads(x)}, x.dtype, "sum over ranks");
  }

  /// Entropy and token accuracy, and how many tokens there were. They live until compute_loss returns, which also lets
  /// go of what the model returned.
  void log_metrics(const Inputs& inputs, const Outputs& outputs) {
    const Tensor valid = total(torch().count_true(outputs.mask));
    const Tensor entropy = total(torch().sum(detached(outputs.scores.entropy)));
    const Tensor correct = total(torch().count_true(outputs.scores.is_top));
    for (const Tensor& sum : {entropy, correct}) {
      { const Tensor flag = number("aten::gt", {reads(valid)}, Dtype::u8, "are there labels"); }
      const Dtype dtype = sum.dtype == Dtype::i64 ? Dtype::f32 : sum.dtype;
      const Tensor mean = number("aten::div", {reads(sum), reads(valid)}, dtype, "mean for the log");
    }
    const Tensor tokens = total(torch().sum(inputs.mask));
  }
};

}  // namespace

std::unique_ptr<Loop> make_sft_loop(LoopParts parts) {
  if (parts.job.runtime == Runtime::deepspeed) return std::make_unique<UnderDeepSpeed<SftLoop>>(std::move(parts));
  return std::make_unique<SftLoop>(std::move(parts));
}

}  // namespace vramfit::eager
