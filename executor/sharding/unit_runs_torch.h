// The runs that work on one unit: loading, the copies around its gathers, gradients, the update.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "executor/checkpoint/saved_states.h"
#include "executor/optimizers/optimizers.h"
#include "executor/sharding/load_rows_torch.h"
#include "executor/training/program_runner_torch.h"
#include "model_specs/graph.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

/// What all units of a rank share.
struct UnitContext {
  const Graph& graph;
  const UnitLayout& layout;
  const Optimizer& optimizer;
  KernelSource kernels = KernelSource::libtorch;
  int shard_rank = 0;  // of this rank
};

/// What the updates of all units in a step share.
struct StepOfUpdate {
  OptimizerStep function = nullptr;
  const OptimizerOptions& options;
  bool draws = false;  // random numbers, from seed, step, parameter and element alone
  std::uint64_t seed = 0;
  std::int64_t step = 0;
  bool overflowed = false;  // as the host has read, in which case LibTorch's calls aren't made
};

class UnitRuns {
 public:
  explicit UnitRuns(const UnitContext& context) : context_(context) {}

  /// `rows` fills the shards, parameter by parameter, never from a whole parameter.
  void load_shard(Operands& operands, RowSupply& rows) const;
  /// Zeros, or what `states` holds (null: nothing). Throws InputError when the unit's parameters were not updated
  /// equally often (they were in different units, one of which had no gradients): a unit has one count.
  void load_states(Operands& operands, StateSource* states) const;
  /// Rows of the rank go to their places in the gathered unit: cast, or made whole from codes, on GPUs in the scratch
  /// that is the operand after the unit, or without one by an own kernel.
  void gather_own(Operands& operands) const;
  /// Masters of matrices become the codes that the card has of them.
  void encode(Operands& operands) const;
  /// Where the parameters are only read, finds sums that the update needs (OptimizerSums).
  void update(Operands& operands, const StepOfUpdate& step) const;

 private:
  std::vector<RandomStretch> stretches_of(const Unit& unit, const StepOfUpdate& step) const;
  std::vector<ParameterRows> rows_of(const Unit& unit) const;
  const Unit& unit_of(const Operands& operands) const;
  void load_parts(const Unit& unit, StateSource& states, const OptimizerState& state, const at::Tensor& into) const;
  void load_count(const Unit& unit, StateSource& states, std::string_view name, at::Tensor& into) const;

  UnitContext context_;
};

/// To and from the host beside everything else: who needs it waits for the copy's token.
void copy_buffer(Operands& operands);

/// Whether the run sends a unit's gradient, which is whole, to its update in host memory.
bool sends_to_update(const program::Run& run, const Job& job);

/// A table's rows of those runs that need nothing but what the program views: zeros, copies, sums.
void add_unit_runs(ProgramRunner& runner);

}  // namespace vramfit
