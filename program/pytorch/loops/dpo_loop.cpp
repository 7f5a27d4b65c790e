// The loop of TRL's DPOTrainer (1.16) with its defaults (trl/trainer/dpo_trainer.py): pairs of answers, one preferred
// to the other, whose log-probabilities are compared with those of a reference. Beside adapters, that is the model
// without them; otherwise a second model.
#include <memory>
#include <utility>

#include "program/pytorch/loops/deepspeed_loop.h"
#include "program/pytorch/loops/referenced_loop.h"
#include "program/stages/adapters.h"

namespace vramfit::eager {

namespace {

class DpoLoop : public ReferencedLoop {
 public:
  explicit DpoLoop(LoopParts parts) : DpoLoop(std::move(parts), has_adapters(parts.job)) {}

 private:
  DpoLoop(LoopParts&& parts, bool adapts)
      : ReferencedLoop(std::move(parts), /*has_second=*/!adapts, /*scores_itself=*/adapts) {}

  static constexpr Torch::ScoresWanted kAllScores{.entropy = true, .mean_logits = true, .is_top = true};

  /// Beside the loss, what is kept for the log until it is returned.
  struct LogProbabilities {
    Tensor of_rows;
    std::vector<Tensor> halves;  // of the preferred answers, and of the others
  };

  bool counts_labels() const override { return false; }
  std::int64_t pairs() const { return parts_.job.micro_batch / 2; }
  std::int64_t scored() const { return parts_.job.sequence - 1; }

  Tensor loss_of(const Inputs& inputs) override {
    const Tensor loss = computed_loss(inputs);
    const Scope scope(heap(), "loss");
    return torch().divide(loss);  // by the number of micro-batches
  }

  /// _compute_loss
  Tensor computed_loss(const Inputs& inputs) {
    const Tensor labels = masked_labels(inputs);
    const Inputs seen{.ids = inputs.ids, .mask = inputs.mask, .labels = labels};
    const Outputs outputs = returned(
        parts_.wrapper, forward_with_scores({parts_.model, parts_.wrapper, true, is_reentrant_}, seen, kAllScores));
    const Scope scope(heap(), "loss");
    const LogProbabilities own = summed(outputs);
    const Outputs of_reference = reference(seen);
    const LogProbabilities other = summed(of_reference);
    const Tensor preferred = torch().minus(own.halves[0], other.halves[0]);
    const Tensor rejected = torch().minus(own.halves[1], other.halves[1]);
    const Tensor apart = torch().minus(preferred, rejected);
    Tensor loss, of_pairs;
    {
      Tensor likelihood;
      {
        const Tensor scaled = torch().scale(apart);  // by DPOConfig's beta
        likelihood = torch().log_sigmoid(scaled);
      }
      of_pairs = torch().negative(likelihood);
    }
    {
      const Tensor weighted = torch().scale(torch().mean_of_rows(of_pairs, of_pairs.elements));
      loss = torch().add_scalar(weighted);  // Python's sum over kinds of loss begins with 0
    }
    log_metrics(inputs, outputs, own, {detached(preferred), detached(rejected)});
    return loss;
  }

  /// input_ids.masked_fill(completion_mask == 0, -100)
  Tensor masked_labels(const Inputs& inputs) {
    const Scope scope(heap(), "loss");
    const std::int64_t count = inputs.ids.elements;
    const Tensor flags = numbers("aten::eq", {reads(inputs.labels)}, count, Dtype::u8, "is a prompt");
    return numbers("aten::masked_fill", {reads(inputs.ids), reads(flags)}, count, Dtype::i64, "labels");
  }

  LogProbabilities summed(const Outputs& outputs) {
    const Tensor rows = torch().sum_of_rows(torch().seen_as_slice(outputs.scores.log_probabilities), scored());
    return {.of_rows = rows, .halves = torch().parts_of(rows, 2)};
  }

  /// What the reference returns, in torch.no_grad and without checkpoints.
  Outputs reference(const Inputs& inputs) {
    parts_.enter(Phase::forward);
    torch().set_gradients(false);
    Outputs outputs = has_second() ? scored_by_second(inputs) : scored_by_itself(inputs, false, kAllScores);
    torch().set_gradients(true);
    is_reentrant_ = asks_for_reentrant_checkpoints();
    return outputs;
  }

  struct Ratios {
    Tensor preferred, rejected;
  };

  /// All of it lives until compute_loss returns, but for what is a number in Python by then.
  void log_metrics(const Inputs& inputs, const Outputs& outputs, const LogProbabilities& own, const Ratios& ratios) {
    Tensor entropy, tokens;
    {
      const Tensor kept = numbers("aten::mul", {reads(outputs.scores.entropy), reads(inputs.labels)},
                                  outputs.scores.entropy.elements, outputs.scores.entropy.dtype, "entropy of answers");
      entropy = torch().sum(kept);
    }
    tokens = answer_tokens(inputs, 2 * pairs());
    entropy = total(entropy);
    tokens = total(tokens);
    log_share(entropy, tokens);
    { const Tensor all = total(torch().sum(inputs.mask)); }
    log_logits(inputs, outputs);
    const Accuracy accuracy = logged_accuracy(inputs, tokens);
    log_rewards(own, ratios);
  }

  Tensor answer_tokens(const Inputs& inputs, std::int64_t rows) {
    Tensor mask = inputs.labels;
    mask.elements = checked_mul(rows, scored());
    return torch().sum(mask);
  }

  /// completion_mask.bool() of one half.
  Tensor flags_of(const Inputs& inputs) {
    return numbers("aten::_to_copy", {reads(inputs.labels)}, checked_mul(pairs(), scored()), Dtype::u8, "answers");
  }

  void log_logits(const Inputs& inputs, const Outputs& outputs) {
    std::vector<Tensor> totals;
    for (int half = 0; half < 2; ++half) {
      Tensor logits = outputs.scores.mean_logits;
      logits.elements /= 2;
      {
        Tensor chosen;
        {
          const Tensor flags = flags_of(inputs);
          chosen = torch().chosen_elements(logits, flags);
        }
        totals.push_back(torch().sum(chosen));
      }
      totals.push_back(answer_tokens(inputs, pairs()));
    }
    for (Tensor& one : totals) {
      { const Tensor sum = total(one); }
      one = {};
    }
  }

  /// What lives beside the number that is logged.
  struct Accuracy {
    Tensor predictions, correct, sum;
  };

  Accuracy logged_accuracy(const Inputs& inputs, Tensor& tokens) {
    Accuracy made;
    {
      const Tensor flags = flags_of(inputs);
      made.predictions = numbers("aten::bitwise_and", {reads(flags)}, flags.elements, Dtype::u8, "correct predictions");
    }
    tokens = answer_tokens(inputs, pairs());
    made.correct = torch().count_true(made.predictions);
    made.correct = gathered_number(made.correct);
    tokens = gathered_number(tokens);
    made.sum = number("aten::sum", {reads(tokens)}, Dtype::i64, "sum over ranks");
    { const Tensor flag = number("aten::gt", {reads(made.sum)}, Dtype::u8, "are there tokens"); }
    const Tensor correct = number("aten::sum", {reads(made.correct)}, Dtype::i64, "sum over ranks");
    const Tensor share = number("aten::div", {reads(correct), reads(made.sum)}, Dtype::f32, "mean for the log");
    return made;
  }

  Tensor of_pairs(const char* call, const Tensor& x, Dtype dtype, const char* what) {
    return numbers(call, {reads(x)}, pairs(), dtype, what);
  }

  void log_rewards(const LogProbabilities& own, const Ratios& ratios) {
    const Dtype dtype = ratios.preferred.dtype;
    const Tensor preferred = of_pairs("aten::mul", ratios.preferred, dtype, "rewards of the preferred");
    const Tensor rejected = of_pairs("aten::mul", ratios.rejected, dtype, "rewards of the others");
    const Tensor all_preferred = gathered(preferred), all_rejected = gathered(rejected);
    log_mean(all_preferred);
    log_mean(all_rejected);
    Tensor accuracies;
    {
      const Tensor flags = of_pairs("aten::gt", preferred, Dtype::u8, "is the preferred ahead");
      accuracies = of_pairs("aten::_to_copy", flags, Dtype::f32, "accuracies of rewards");
    }
    const Tensor all_accuracies = gathered(accuracies);
    log_mean(all_accuracies);
    const Tensor margins = of_pairs("aten::sub", preferred, dtype, "margins of rewards");
    const Tensor all_margins = gathered(margins);
    log_mean(all_margins);
    for (const Tensor& half : own.halves) log_mean(gathered(detached(half)));
  }

  /// Whether checkpoints are: once TRL has turned them on again behind a reference's forward (trl/models/utils.py:
  /// disable_gradient_checkpointing).
  bool is_reentrant_ = parts_.job.reentrant_checkpoints;
};

}  // namespace

std::unique_ptr<Loop> make_dpo_loop(LoopParts parts) {
  if (parts.job.runtime == Runtime::deepspeed) return std::make_unique<UnderDeepSpeed<DpoLoop>>(std::move(parts));
  return std::make_unique<DpoLoop>(std::move(parts));
}

}  // namespace vramfit::eager
