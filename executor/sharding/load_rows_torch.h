// How initial weights reach the ranks that hold them (docs/loading.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "executor/checkpoint/saved_states.h"
#include "executor/checkpoint/weights.h"
#include "executor/ops/quantized_torch.h"
#include "executor/sharding/collectives.h"
#include "executor/training/scaled_sums_torch.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// Fills the shards of a rank. All ranks of the job ask for the same parameters in the same order.
struct RowSupply {
  virtual ~RowSupply() = default;
  /// The rank's rows of a parameter, from the first on; `slice` is its 1-D part of the shard, rows_per_rank rows, zero
  /// where the parameter has no more.
  virtual void fill(const Parameter& parameter, const UnitParameter& p, at::Tensor slice) = 0;
  /// Likewise of one whose numbers have a scale.
  virtual void fill_scaled(const Parameter& parameter, const UnitParameter& p, const ScaledPart& into);
};

/// Each rank reads its own rows.
std::unique_ptr<RowSupply> each_reads(WeightSource& weights, const Collectives& shard_group);

/// The ranks that rank 0 of the job sends to, and what it reads their rows into.
struct LoadGroups {
  Collectives& shard;                   // rank 0's copy is spread over the first of these groups
  Collectives& replicate;               // and from each of its ranks to those that hold the same shard
  const at::Tensor* staging = nullptr;  // rank 0, with several shards: load_staging() bytes
};

/// How a rank's rows of matrices become codes, or numbers with a scale: read some at a time in fp32, on the host.
struct QuantizingLoad {
  WeightSource& weights;
  Collectives& shard_group;
  const at::Tensor* sum = nullptr;  // 8 bytes on the device; with several shards, where scales have a mean
  bool has_values = true;           // false: nothing is read and nothing written
  StateSource* saved = nullptr;     // the checkpoint that has the codes; null: they are made
};

/// Rows of a matrix with a scale, which is found before they are rounded: rows are read twice.
void load_scaled(const QuantizingLoad& inputs, const Parameter& parameter, const UnitParameter& p,
                 const ScaledPart& into);

/// The same rows, quantized where the layout says so.
std::unique_ptr<RowSupply> quantizing_rows(std::unique_ptr<RowSupply> rows, const QuantizingLoad& inputs);

/// What rank `shard` of those that share the matrix holds of it.
QuantizedRows quantized_rows(const UnitParameter& p, std::int64_t shard);

/// Rank 0 reads for all; `weights` of the others is never asked.
std::unique_ptr<RowSupply> rank0_reads(WeightSource& weights, const LoadGroups& groups);

}  // namespace vramfit
