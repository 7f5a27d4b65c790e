// Executes the tapes of program/tape.h with tensors: the lists say what is allocated, kept and dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "executor/ops/ops.h"
#include "executor/sharding/unit_state_torch.h"
#include "program/tape.h"

namespace vramfit {

class TrainObserver;

/// What the tapes of a run share.
struct TapeContext {
  const Graph& graph;
  const Job& job;
  const Device& device;
  const UnitLayout& layout;
  std::vector<UnitState>& units;
  at::Device place;
};

/// Runs the segments of one micro-batch. Labels and categories are those of docs/architecture.md.
class TapeRunner {
 public:
  explicit TapeRunner(const TapeContext& context);

  const std::vector<SegmentTape>& tapes() const { return tapes_; }
  /// Token ids and labels, [N] int64, of the micro-batch that begins; undefined tensors when it ends.
  void set_inputs(const at::Tensor& ids, const at::Tensor& labels);
  void forward(int segment, bool checkpointed, const StepFacts& facts);
  void recompute(int segment, const StepFacts& facts);
  void backward(int segment, const StepFacts& facts);

  /// Called with the loss [1] at the end of the last segment's backward: chunked losses are complete only then.
  std::function<void(const at::Tensor&)> on_loss;
  /// Called with every value once it is computed in a forward pass (--dump-logits); may be empty.
  std::function<void(const Segment&, const Value&, const at::Tensor&)> on_value;
  /// Told when each op begins and ends; may be null.
  TrainObserver* observer = nullptr;

 private:
  struct SegmentState {
    std::vector<at::Tensor> values, gradients;
  };

  void run(int segment, const std::vector<TapeAction>& actions, const StepFacts& facts);
  void drop_value(int segment, int value);
  void run_forward(int segment, const TapeAction& action, const StepFacts& facts);
  void run_backward(int segment, const TapeAction& action, const StepFacts& facts);
  void add_parameters(OpCall& call) const;
  void add_input_gradients(int segment, const TapeAction& action, OpCall& call);
  void add_parameter_gradients(Needs& needs, OpCall& call);
  OpContext op_context(int segment, int op) const;
  at::Tensor allocate_value(int segment, int value, bool gradient) const;
  std::vector<std::int64_t> sizes_of(const Value& value) const;

  TapeContext context_;
  BatchShape shape_;
  std::vector<SegmentTape> tapes_;
  std::vector<SegmentState> segments_;
};

}  // namespace vramfit
