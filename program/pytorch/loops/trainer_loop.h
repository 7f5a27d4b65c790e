// The loop of transformers' Trainer (5.23) with its defaults, and accelerate's part in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/pytorch/grad_scaler.h"
#include "program/pytorch/loops/loop.h"
#include "program/pytorch/rules.h"

namespace vramfit::eager {

class TrainerLoop : public Loop {
 public:
  using Loop::Loop;

  void micro_batch(Place place) override;
  void update() override;

 protected:
  /// accelerator.backward
  virtual void backward_of(Tensor loss, bool is_last);
  struct Inputs {
    Tensor ids, mask, labels;
  };

  /// compute_loss, by default the loss that transformers' models compute (loss/loss_utils.py: ForCausalLMLoss).
  virtual Tensor loss_of(const Inputs& inputs);

  /// How many labels count in all micro-batches of the step.
  const Tensor& items() const { return items_; }
  /// What `call` computes: `count` numbers of the loss.
  Tensor numbers(const char* call, const Accesses& inputs, std::int64_t count, Dtype dtype, const char* what);
  Tensor number(const char* call, const Accesses& inputs, Dtype dtype, const char* what) {
    return numbers(call, inputs, 1, dtype, what);
  }
  std::int64_t ranks() const { return checked_mul(parts_.job.mesh.shard, parts_.job.mesh.replicate); }
  /// accelerate's gather(x).sum(), of one number of each rank; x is let go of where it was the caller's last.
  Tensor summed_over_ranks(Tensor x);
  bool is_sharded() const { return parts_.job.runtime == Runtime::pytorch_fsdp2; }
  /// torch.autocast around the model's forward.
  bool is_autocast() const { return is_mixed_in_16_bits(parts_.job) && !is_sharded(); }
  /// FSDP2 converts what its root module is passed and what it returns (accelerate sets its policy's output_dtype).
  bool has_policy() const { return is_sharded() && parts_.job.precision.compute != parts_.job.precision.storage; }

 private:
  void begin_step();
  Tensor counted_labels(const std::vector<Inputs>& batches);
  /// `items`: labels that count, where FSDP2 has converted them.
  Tensor next_token_loss(const Tensor& logits, const Tensor& labels, const Tensor& items);
  Tensor shifted(const Tensor& labels, Tensor& padded);
  void look_at_loss();
  /// Whether the optimizer is asked on the card to skip an update (its _step_supports_amp_scaling): only PyTorch's
  /// fused.
  bool skips_on_card() const {
    return parts_.job.optimizer == "adamw" && parts_.job.optimizer_implementation == OptimizerImplementation::fused;
  }
  bool scales_loss() const { return parts_.job.precision.name == "fp16-mixed"; }

  std::vector<Inputs> batches_;
  std::size_t next_ = 0;
  Tensor items_, loss_, norm_;
  GradScaler scaler_;
};

}  // namespace vramfit::eager
