// What accelerate (1.15) does in a loop around one of transformers' models, whoever has written that loop.
#pragma once

#include <cstdint>
#include <vector>

#include "program/pytorch/loops/loop.h"
#include "program/pytorch/optimizers/grad_scaler.h"
#include "program/pytorch/rules.h"

namespace vramfit::eager {

class AcceleratorLoop : public Loop {
 public:
  using Loop::Loop;

 protected:
  struct Inputs {
    Tensor ids, mask, labels;  // mask: of packed documents, positions instead
    PackedDocuments documents = {};
    std::vector<Tensor> others = {};  // which nothing here reads
  };
  /// What the collator gave, on the card.
  virtual Inputs moved_inputs();

  /// The model's forward, which ends with its loss (loss/loss_utils.py: ForCausalLMLoss): the sum over labels divided
  /// by `items`, or where that is empty, their mean.
  Tensor loss_of_model(const Inputs& inputs, const Tensor& items);
  /// accelerator.backward
  virtual void backward_of(Tensor loss, bool is_last);
  /// Before the gradients' norm is taken: what fp16 needs.
  void unscale_gradients();
  /// accelerator.clip_grad_norm_, to a norm of gradients that have been unscaled. Returns the norm before.
  Tensor clipped();
  /// optimizer.step(), after which no parameter has a gradient.
  void step();

  /// What `call` computes: `count` numbers of the loss.
  Tensor number(const char* call, const Accesses& inputs, Dtype dtype, const char* what) {
    return numbers(call, inputs, 1, dtype, what);
  }
  bool is_sharded() const { return is_fsdp(parts_.job.runtime); }
  bool is_fsdp2() const { return parts_.job.runtime == Runtime::pytorch_fsdp2; }
  /// torch.autocast around the model's forward.
  bool is_autocast() const { return is_mixed_in_16_bits(parts_.job) && !is_fsdp2(); }
  /// FSDP converts what its root module is passed.
  bool has_policy() const { return is_sharded() && is_mixed_in_16_bits(parts_.job); }
  /// FSDP2 converts what it returns, too (accelerate sets its policy's output_dtype).
  bool converts_outputs() const { return has_policy() && is_fsdp2(); }

 private:
  /// `items`: as the model sees them; `outputs`: logits, or what a fused loss takes.
  Tensor next_token_loss(const Tensor& outputs, const Tensor& labels, const Tensor& items);
  /// The sum or, without `items`, the mean over labels.
  Tensor token_loss(const Tensor& outputs, const Tensor& targets);
  bool is_fused() const { return parts_.model.loss_kernel() == LossKernel::liger_fused; }
  Tensor shifted(const Tensor& labels, Tensor& padded);
  /// The learning rate of the next step, where that is on the card.
  virtual void schedule() {}

  /// Whether the optimizer is asked on the card to skip an update (its _step_supports_amp_scaling): only PyTorch's
  /// fused.
  bool skips_on_card() const {
    return parts_.job.optimizer == "adamw" && parts_.job.optimizer_implementation == OptimizerImplementation::fused;
  }
  bool scales_loss() const { return parts_.job.precision.name == "fp16-mixed"; }

  GradScaler scaler_;
};

}  // namespace vramfit::eager
