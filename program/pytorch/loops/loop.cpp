#include "program/pytorch/loops/loop.h"

#include <utility>
#include <variant>

#include "program/optimizers/optimizers.h"
#include "program/pytorch/calls/autocast.h"

namespace vramfit::eager {

namespace {

bool is_checkpointed(const Job& job, std::size_t block) {
  if (const auto* every = std::get_if<EveryNth>(&job.checkpointing)) {
    return (static_cast<std::int64_t>(block) + 1) % every->n == 0;
  }
  return !std::holds_alternative<NoCheckpointing>(job.checkpointing);
}

}  // namespace

Tensor Loop::sent(std::int64_t count, Dtype dtype, const char* what) {
  const Scope scope(heap(), "inputs");
  const Tensor made = heap().make(count, dtype, Category::activations, what);
  heap().run("aten::_to_copy", {writes(made)}, {.bytes = 0});
  return made;
}

Tensor Loop::tokens(const char* what) {
  return sent(checked_mul(parts_.job.micro_batch, parts_.job.sequence), Dtype::i64, what);
}

/// A layer's own hooks are around its checkpoint.
Tensor Loop::block(const Wrapped& wrapped, std::size_t number, const Tensor& input) {
  const Submodule layer = wrapped.model.layer(number);
  return torch().leave(layer, code_of_block(wrapped, number, torch().enter(layer, input)));
}

Tensor Loop::code_of_block(const Wrapped& wrapped, std::size_t number, const Tensor& input) {
  CheckpointBody code = wrapped.model.block(number);
  if (!wrapped.checkpoints || !is_checkpointed(parts_.job, number)) return code(input);
  const auto body = [&library = torch(), autocast = torch().autocast(), code = std::move(code)](const Tensor& x) {
    const Autocast again(library, autocast);
    return code(x);
  };
  if (wrapped.is_reentrant) return torch().reentrant_checkpoint(body, input);
  // torchtitan's configuration has early_stop, which is off (config/job_config.py).
  const CheckpointForm form{.is_selective = std::holds_alternative<SelectiveCheckpointing>(parts_.job.checkpointing),
                            .stops_early = parts_.job.modeling != Modeling::torchtitan_02};
  return checkpoint(torch().checkpoints(), body, input, form);
}

Tensor Loop::forward_of(const Wrapped& wrapped, const Tensor& ids, const Tensor& mask, const Tensor& items) {
  Model& model = wrapped.model;
  Wrapper& wrapper = wrapped.wrapper;
  heap().values = Category::activations;
  wrapper.begin_forward();
  Tensor h = model.embed(wrapper.pre_forward(0, ids));
  wrapper.post_forward(0, h);
  h = model.prepare(std::move(h), mask, items);
  for (std::size_t b = 0; b < model.blocks(); ++b) {
    Tensor input = wrapper.pre_forward(b + 1, h);
    Tensor output = block(wrapped, b, input);
    wrapper.post_forward(b + 1, output);
    input = {};
    h = std::move(output);
  }
  const std::size_t last = model.blocks() + 1;
  // TRL and Liger's fused loss never run the output layer itself, so that the last unit isn't seen to end; torchtune
  // runs it in parts.
  const bool is_fused = has_trl(parts_.job) || model.loss_kernel() == LossKernel::liger_fused;
  const bool has_output = !is_fused && parts_.job.modeling != Modeling::torchtune;
  Tensor logits = model.head(wrapper.pre_forward(last, std::move(h)), [&](Tensor normed) {
    normed = wrapper.leave_base(std::move(normed));
    if (is_classifier(parts_.job)) wrapper.post_forward(last, normed);  // whose output layer is in no unit but the root
    return has_output ? wrapper.pre_output(std::move(normed)) : normed;
  });
  if (has_output) wrapper.post_forward(last, logits);
  return model.finish(std::move(logits));
}

void Loop::step_optimizer() {
  parts_.enter(Phase::optimizer);
  update_with(parts_.wrapper);
}

void Loop::update_with(Wrapper& wrapper) {
  optimizer_named(parts_.job.optimizer)
      .pytorch_step(torch(), wrapper, parts_.job.optimizer_implementation, parts_.job.precision.state);
}

std::unique_ptr<Loop> make_loop(LoopParts parts) {
  if (parts.job.modeling == Modeling::trl) return make_sft_loop(std::move(parts));
  if (parts.job.modeling == Modeling::trl_dpo) return make_dpo_loop(std::move(parts));
  if (parts.job.modeling == Modeling::trl_reward) return make_reward_loop(std::move(parts));
  if (parts.job.modeling == Modeling::trl_grpo) return make_grpo_loop(std::move(parts));
  if (parts.job.modeling == Modeling::accelerate) return make_accelerate_loop(std::move(parts));
  if (parts.job.modeling == Modeling::torchtune) return make_torchtune_loop(std::move(parts));
  if (parts.job.modeling == Modeling::torchtitan_02) return make_torchtitan_loop(std::move(parts));
  return has_trainer(parts.job) ? make_trainer_loop(std::move(parts)) : make_plain_loop(std::move(parts));
}

}  // namespace vramfit::eager
