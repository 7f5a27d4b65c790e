// The runs of a model's ops: tensors of a program become an op's call (executor/ops/ops.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "executor/ops/ops.h"
#include "executor/training/program_runner_torch.h"
#include "program/stages/tape.h"

namespace vramfit {

class TrainObserver;

/// What the ops of a run share.
struct OpRunsContext {
  const Graph& graph;
  const Job& job;
  const Device& device;
  const UnitLayout& layout;
  const StepFacts& facts;
  at::Device place;
};

class OpRuns {
 public:
  explicit OpRuns(const OpRunsContext& context);

  void forward(Operands& operands);
  void backward(Operands& operands);
  /// A fresh gradient of a whole parameter, which the op after it writes: the rows that pad it.
  void zero_padding(Operands& operands) const;

  /// Called with every value once it is computed in a forward pass (--dump-logits); may be empty.
  std::function<void(const Segment&, const Value&, const at::Tensor&)> on_value;
  /// Told when each op begins and ends; may be null.
  TrainObserver* observer = nullptr;

 private:
  /// One op about to run: its call is filled operand by operand.
  struct Run;

  OpContext context_of(const Operands& operands) const;
  const Needs& needs_of(const Operands& operands) const;
  const Unit& unit_of(const ParameterUse& use) const;
  const UnitParameter& place_of(const ParameterUse& use) const;
  at::Tensor shaped(const at::Tensor& tensor, const Value& value) const;
  at::Tensor weight(const at::Tensor& storage, const ParameterUse& use, const Op& op) const;
  at::Tensor gradient_home(const at::Tensor& home, const ParameterUse& use, const Op& op) const;
  void execute(Run& run, Operands& operands, void (*function)(OpCall&)) const;

  OpRunsContext context_;
  BatchShape shape_;
  std::vector<std::shared_ptr<const SegmentTape>> tapes_;
};

}  // namespace vramfit
