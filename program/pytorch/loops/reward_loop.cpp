// The loop of TRL's RewardTrainer (1.16) with its defaults (trl/trainer/reward_trainer.py): pairs of rows, one
// preferred to the other, each of which the model gives a number (transformers/modeling_layers.py:
// GenericForSequenceClassification).
#include <optional>
#include <utility>

#include "program/pytorch/calls/autocast.h"
#include "program/pytorch/loops/deepspeed_loop.h"
#include "program/pytorch/loops/scored_loop.h"

namespace vramfit::eager {

namespace {

class RewardLoop : public ScoredLoop {
 public:
  using ScoredLoop::ScoredLoop;

 private:
  bool counts_labels() const override { return false; }
  std::int64_t pairs() const { return parts_.job.micro_batch / 2; }

  Inputs moved_inputs() override {
    heap().values = Category::activations;
    Inputs inputs;
    inputs.ids = tokens("ids");
    inputs.mask = tokens("mask");
    return inputs;
  }

  Tensor loss_of(const Inputs& inputs) override {
    const Tensor loss = computed_loss(inputs);
    const Scope scope(heap(), "loss");
    return torch().divide(loss);  // by the number of micro-batches
  }

  /// compute_loss
  Tensor computed_loss(const Inputs& inputs) {
    const Tensor rewards = rewards_of(inputs);
    const Scope scope(heap(), "loss");
    Tensor loss;
    {
      const std::vector<Tensor> halves = torch().parts_of(rewards, 2);
      Tensor mean;
      {
        const Tensor likelihood = torch().log_sigmoid(torch().minus(halves[0], halves[1]));
        mean = torch().mean_of_rows(likelihood, likelihood.elements);
      }
      loss = torch().negative(mean);
    }
    log_metrics(inputs, rewards);
    return loss;
  }

  Tensor rewards_of(const Inputs& inputs) {
    Tensor rewards;
    {
      parts_.wrapper.enter_model();
      const Autocast autocast(torch(), is_autocast() ? std::optional(parts_.job.precision.compute) : std::nullopt);
      const Tensor scores = forward(inputs.ids, inputs.mask);
      parts_.enter(Phase::loss);
      const Scope scope(heap(), "loss");
      rewards = of_last_tokens(inputs, scores);
      parts_.model.leave();
    }
    const Scope scope(heap(), "loss");
    if (is_autocast()) rewards = torch().cast(rewards, Dtype::f32);
    parts_.wrapper.end_forward(rewards);
    rewards = parts_.wrapper.leave_model(std::move(rewards));
    return parts_.wrapper.copies_outputs() ? torch().clone(rewards) : rewards;
  }

  /// Of each row, the score of its last token that isn't padding.
  Tensor of_last_tokens(const Inputs& inputs, const Tensor& scores) {
    const Job& job = parts_.job;
    const std::int64_t count = inputs.ids.elements;
    Tensor is_token;
    {
      const Tensor flags = numbers("aten::ne", {reads(inputs.ids)}, count, Dtype::u8, "is no padding");
      is_token = numbers("aten::_to_copy", {reads(flags)}, count, Dtype::i32, "is no padding, as a number");
    }
    const Tensor range = numbers("aten::arange", {}, job.sequence, Dtype::i32, "range of tokens");
    Tensor last;
    {
      const Tensor places =
          numbers("aten::mul", {reads(range), reads(is_token)}, count, Dtype::i32, "places of tokens");
      last = torch().places_of_largest(places, job.sequence);
    }
    const Tensor rows = numbers("aten::arange", {}, job.micro_batch, Dtype::i64, "range of rows");
    return torch().elements_at(scores, rows, last);
  }

  /// How many tokens there were, and of rewards their least, mean and largest, their accuracy and margin.
  void log_metrics(const Inputs& inputs, const Tensor& rewards) {
    { const Tensor all = total(torch().sum(inputs.mask)); }
    {
      const Tensor all = gathered(detached(rewards));
      for (const char* const call : {"aten::min", "aten::mean", "aten::max"}) {
        const Tensor of_all = number(call, {reads(all)}, all.dtype, "reward for the log");
      }
      log_accuracy(rewards);
    }
  }

  void log_accuracy(const Tensor& rewards) {
    Tensor mean;
    {
      Tensor wide;
      {
        const Tensor flags = numbers("aten::gt", {reads(rewards)}, pairs(), Dtype::u8, "is the preferred ahead");
        wide = numbers("aten::_to_copy", {reads(flags)}, pairs(), Dtype::f32, "is the preferred ahead, as a number");
      }
      mean = number("aten::mean", {reads(wide)}, Dtype::f32, "accuracy");
    }
    log_mean(gathered_number(mean));
    mean = {};
    Tensor margin;
    {
      const Tensor margins = numbers("aten::sub", {reads(rewards)}, pairs(), rewards.dtype, "margins of rewards");
      margin = number("aten::mean", {reads(margins)}, margins.dtype, "margin");
    }
    const Tensor all = gathered_number(margin);
    const Tensor whole = number("aten::mean", {reads(all)}, all.dtype, "mean for the log");
  }
};

}  // namespace

std::unique_ptr<Loop> make_reward_loop(LoopParts parts) {
  if (parts.job.runtime == Runtime::deepspeed) return std::make_unique<UnderDeepSpeed<RewardLoop>>(std::move(parts));
  return std::make_unique<RewardLoop>(std::move(parts));
}

}  // namespace vramfit::eager
