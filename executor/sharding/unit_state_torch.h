// One unit during training: its shard and states, its temporary gathered storage, and where gradients go.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "executor/checkpoint/saved_states.h"
#include "executor/optimizers/optimizers.h"
#include "executor/sharding/collectives.h"
#include "executor/sharding/load_rows_torch.h"
#include "model_specs/graph.h"
#include "program/ledger.h"
#include "program/units_layout.h"

namespace vramfit {

/// What all units of a rank share.
struct UnitContext {
  const Graph& graph;
  const Precision& precision;
  const UnitLayout& layout;
  Collectives& shard_group;    // ranks that hold the shards of one copy; size = layout.shards
  Collectives& reshard_group;  // of the shard group, those that keep slices of a unit; size = layout.reshard_ranks
  at::Device device;
};

/// A parameter's gradient for one use of it, and whether that use adds to what is there.
struct GradientHome {
  at::Tensor tensor;  // the used rows or columns
  bool accumulate = false;
};

/// What the optimizer is told about all gradients (OptimizerCall); null: nothing.
struct GradientFactors {
  const at::Tensor* divisor = nullptr;
  const at::Tensor* found_inf = nullptr;
};

/// Allocations and their labels are those of docs/architecture.md. Padding rows and the gaps between parameters are
/// zero in shards and gradients, so flat operations may run over them.
class UnitState {
 public:
  UnitState(const UnitContext& context, const Unit& unit) : context_(context), unit_(unit) {}

  /// Allocates shard and states; the shard is filled row range by row range, never from a whole parameter.
  void load(RowSupply& rows);
  /// Fills the states of a unit that is loaded. Throws InputError when its parameters were not updated equally often
  /// (they were in different units, one of which had no gradients): a unit has one count.
  void load_states(StateSource& states);

  /// Starts gathering, unless it is gathered or being gathered already.
  void issue();
  void wait();
  void release();
  /// Releases all but this rank's slice; the next issue gathers the slices of the group.
  void reshard();

  /// The used rows (`by_column`: columns) of a parameter, in its own shape; undefined while it isn't gathered (an
  /// embedding in backward: its kernel reads no weight).
  at::Tensor view(const ParameterUse& use, bool by_column) const;
  /// Where a use's gradient goes; made on the first write since the last reduce (or step, when direct).
  GradientHome gradient_home(const ParameterUse& use, OpKind kind, bool by_column);

  /// Adds buffered gradients to the sums of the step's earlier micro-batches, largest first; nothing is sent.
  void accumulate();
  /// Hands buffered gradients, with those sums, to the reduction, largest first, so that piece + buffer meet while
  /// little else is held.
  void reduce();
  /// Waits for it and adds this rank's slices to the gradient shard.
  void finish();

  void step(const OptimizerFunctions& optimizer, const OptimizerOptions& options, const GradientFactors& factors);

  const Unit& unit() const { return unit_; }
  const Precision& precision() const { return context_.precision; }
  const at::Tensor& shard() const { return shard_; }
  /// Optimizer states over the trainable prefix of the shard, and the count of updates; undefined when nothing is
  /// trained.
  const at::Tensor& exp_avg() const { return exp_avg_; }
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }
  const at::Tensor& step_count() const { return step_; }
  const at::Tensor& gradient_shard() const { return gradient_shard_; }
  /// A parameter's part of a flat shard tensor, rows_per_rank rows of it.
  static at::Tensor slice(const at::Tensor& flat, const UnitParameter& p);

 private:
  /// By parameter: which of its uses have written their gradient into its home.
  using WrittenUses = std::vector<std::int64_t>;  // `first` of each

  const UnitParameter& slot_of(int parameter) const;
  const Parameter& parameter_of(const UnitParameter& p) const;
  at::Tensor whole(const at::Tensor& flat, std::int64_t offset, const UnitParameter& p) const;
  static at::Tensor used_part(const at::Tensor& full, const ParameterUse& use, bool by_column);
  at::Tensor slice_to_keep(const UnitParameter& p) const;  // of gathered_
  at::Tensor own_slice(const at::Tensor& piece, const UnitParameter& p) const;
  at::Tensor allocate(std::int64_t elements, Dtype dtype, Category category, const std::string& label) const;
  void make_gradient_shard();
  at::Tensor& make_buffer(const UnitParameter& p, const ParameterUse& use, OpKind kind);

  UnitContext context_;
  const Unit& unit_;
  at::Tensor shard_, exp_avg_, exp_avg_sq_, step_, gathered_, kept_slice_, gradient_shard_;
  Pending gathering_, reducing_;
  std::map<int, at::Tensor> buffers_, sums_;        // by parameter; sums: whole, in the reduce dtype
  std::vector<std::pair<int, at::Tensor>> pieces_;  // by parameter, being reduced
  std::map<int, WrittenUses> written_to_buffer_, written_to_shard_;
};

}  // namespace vramfit
