// The runs of a model's ops: tensors of a program, as it views them, become an op's call (executor/ops/ops.h). Of the
// graph they take an op and its attributes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "executor/ops/ops.h"
#include "executor/training/program_runner_torch.h"

namespace vramfit {

class TrainObserver;

/// What the ops of a run share.
struct OpRunsContext {
  const Graph& graph;
  const Job& job;
  const Device& device;
  const StepFacts& facts;
  at::Device place;
};

class OpRuns {
 public:
  explicit OpRuns(const OpRunsContext& context);

  void forward(Operands& operands);
  void backward(Operands& operands);

  /// Called with every value once it is computed in a forward pass (--dump-logits); may be empty.
  std::function<void(const Segment&, const Value&, const at::Tensor&)> on_value;
  /// Told when each op begins and ends; may be null.
  TrainObserver* observer = nullptr;

 private:
  /// One op about to run: its call is filled operand by operand.
  struct Run;

  /// Of the run's op, or of the one that its pass does first.
  OpContext context_of(const Operands& operands, int op) const;
  template <typename F>
  void execute(Run& run, Operands& operands, const F& function) const;
  void finish_forward(Run& run, Operands& operands, std::size_t first_output) const;

  OpRunsContext context_;
  BatchShape shape_;
};

}  // namespace vramfit
