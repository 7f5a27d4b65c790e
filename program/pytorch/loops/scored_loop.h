// What TRL's trainers (1.16) share: a forward that ends with log-probabilities of the labels instead of logits
// (trl/trainer/utils.py: add_fused_lm_head).
#pragma once

#include "program/pytorch/loops/trainer_loop.h"
#include "program/stages/adapters.h"

namespace vramfit::eager {

class ScoredLoop : public TrainerLoop {
 public:
  using TrainerLoop::TrainerLoop;

 protected:
  /// Beside adapters that are in parts under DeepSpeed, of checkpoints; the Trainer doesn't read what it is asked for,
  /// and first makes others (gradient_checkpointing_kwargs).
  bool asks_for_reentrant_checkpoints() const {
    if (parts_.job.reentrant_checkpoints) return true;
    return has_adapters(parts_.job) && parts_.job.runtime == Runtime::deepspeed && parts_.job.sharding == "full-shard";
  }
  /// Whether the wrapper is in the model itself, and not around it.
  bool has_parts() const {
    return is_sharded() || (parts_.job.runtime == Runtime::deepspeed && parts_.job.sharding == "full-shard");
  }
  /// The Trainer moves its model to the card before TRL does a reference; one that is to be sharded, or is DeepSpeed's,
  /// waits until it trains.
  bool is_moved_first() const { return !is_sharded() && parts_.job.runtime != Runtime::deepspeed; }
  /// What the patched forward returns (FusedCausalLMOutput). Its own loss, and what that is divided by, are nobody's.
  struct Outputs {
    Torch::Scores scores;
    Tensor mask, loss, divisor;
  };

  /// _fused_forward of a model around which accelerate's autocast is, which finds nothing to widen.
  Outputs forward_with_scores(const Wrapped& wrapped, const Inputs& inputs, Torch::ScoresWanted wanted);
  /// What a model's wrappers make of what it returns. FSDP2 converts it. DDP copies it, and where
  /// autograd made it, the copies take its place; their node also leads to what the model's own loss was divided by.
  Outputs returned(Wrapper& wrapper, Outputs outputs);
  /// Whether accelerator.gather does: with DeepSpeed from a single rank, too.
  bool gathers() const { return ranks() > 1 || parts_.job.runtime == Runtime::deepspeed; }
  /// accelerator.gather_for_metrics(x).sum()
  Tensor total(Tensor x);
  /// accelerator.gather of numbers: x itself where there is one process.
  Tensor gathered(const Tensor& x) { return gathers() ? gathered_from_ranks(x) : x; }
  Tensor gathered_number(const Tensor& x) { return gathers() ? gathered_from_ranks(cloned_number(x)) : x; }
  /// gather(x).mean().item()
  void log_mean(const Tensor& gathered) {
    const Tensor mean = number("aten::mean", {reads(gathered)}, gathered.dtype, "mean for the log");
  }
  /// sum / count if count > 0 else 0, for the log.
  void log_share(const Tensor& sum, const Tensor& count);

 private:
  Torch::Scores scores_of(const Model::OutputLayer& output, const Tensor& hidden, const Tensor& labels,
                          const Tensor& mask, const Tensor& weights, Torch::ScoresWanted wanted);
  void add_own_loss(Outputs& outputs);
};

}  // namespace vramfit::eager
