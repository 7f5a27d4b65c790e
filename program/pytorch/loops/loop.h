// A training loop as a person or a library writes it around a model: what it holds, and for how long.
#pragma once

#include <functional>
#include <memory>

#include "job/job.h"
#include "program/pytorch/modelings/modeling.h"

namespace vramfit::eager {

/// What every loop works with; all of it outlives the loop.
struct LoopParts {
  const Graph& graph;
  const Job& job;
  std::int64_t documents = 0;  // in a micro-batch that is packed; 0: it is not
  bool clip = true;
  Torch& torch;
  Model& model;
  Wrapper& wrapper;
  std::function<void(Phase)> enter;
};

class Loop {
 public:
  explicit Loop(LoopParts parts) : parts_(std::move(parts)) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  Loop(Loop&&) = delete;
  Loop& operator=(Loop&&) = delete;
  virtual ~Loop() = default;

  /// What it loads before the model.
  virtual void load_first() {}
  /// What it makes before the first step.
  virtual void prepare() {}
  /// Where in its step a micro-batch is: before the first comes the step's own beginning, and after the last an update.
  struct Place {
    bool is_first = true, is_last = true;
    bool is_repeated = false;  // it stands for several
  };
  /// Forward and backward.
  virtual void micro_batch(Place place) = 0;
  /// A micro-batch that is not walked, as it does what another one of its step does.
  virtual void pass_over() {}
  /// Clipping, the optimizer, and what is let go of at the end of a step.
  virtual void update() = 0;

 protected:
  struct Wrapped {
    Model& model;
    Wrapper& wrapper;
    bool checkpoints = true;    // as the job says
    bool is_reentrant = false;  // which these then are
  };
  Wrapped trained_model() const { return {parts_.model, parts_.wrapper, true, parts_.job.reentrant_checkpoints}; }
  /// The model's forward up to its logits; `mask` and `items` as Model::prepare takes them. The wrapper's end of
  /// forward is the caller's, as a model may compute its loss within it.
  Tensor forward(const Tensor& ids, const Tensor& mask = {}, const Tensor& items = {}) {
    return forward_of(trained_model(), ids, mask, items);
  }
  Tensor forward_of(const Wrapped& wrapped, const Tensor& ids, const Tensor& mask, const Tensor& items);
  /// A tensor that is copied from the host; and of one number for each token of a micro-batch.
  Tensor sent(std::int64_t count, Dtype dtype, const char* what);
  Tensor tokens(const char* what);
  /// What a call outside the model's own makes, of the loss and what is logged.
  Tensor numbers(const char* call, const Accesses& inputs, std::int64_t count, Dtype dtype, const char* what) {
    return torch().computed(call, inputs, heap().make(count, dtype, Category::logits_and_loss, what));
  }
  void step_optimizer();
  /// The job's optimizer over what is trained in `wrapper`.
  void update_with(Wrapper& wrapper);

  Torch& torch() { return parts_.torch; }
  Heap& heap() { return parts_.torch.heap(); }
  const LoopParts parts_;

 private:
  Tensor block(const Wrapped& wrapped, std::size_t number, const Tensor& input);
  Tensor code_of_block(const Wrapped& wrapped, std::size_t number, const Tensor& input);
};

/// The loop that belongs to the job's modeling: a plain one, one with accelerate, transformers' Trainer, alone or with
/// DeepSpeed, one of TRL's trainers, torchtune's recipes, or torchtitan's trainer.
std::unique_ptr<Loop> make_loop(LoopParts parts);
std::unique_ptr<Loop> make_plain_loop(LoopParts parts);
std::unique_ptr<Loop> make_accelerate_loop(LoopParts parts);
std::unique_ptr<Loop> make_trainer_loop(LoopParts parts);
std::unique_ptr<Loop> make_sft_loop(LoopParts parts);
std::unique_ptr<Loop> make_dpo_loop(LoopParts parts);
std::unique_ptr<Loop> make_torchtune_loop(LoopParts parts);
std::unique_ptr<Loop> make_torchtitan_loop(LoopParts parts);
/// How many of torchtitan's micro-batches between a step's first and last are walked one by one, as each leaves inputs
/// and a loss until the step's end. One more stands for the rest, whose inputs are a tensor of their own.
inline constexpr std::int64_t kMostApartInTorchtitan = 30;
std::unique_ptr<Loop> make_reward_loop(LoopParts parts);
std::unique_ptr<Loop> make_grpo_loop(LoopParts parts);

}  // namespace vramfit::eager
