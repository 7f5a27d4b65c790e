// Copies units' shards and states into a Snapshot.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "executor/checkpoint/snapshot.h"
#include "executor/sharding/collectives.h"
#include "executor/sharding/unit_state_torch.h"
#include "model_specs/graph.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

struct SnapshotContext {
  const Graph& graph;
  const Optimizer& optimizer;
  Collectives& shard_group;      // its rank decides which rows are this rank's
  Collectives& replicate_group;  // replicas hold the same, so they divide the units among themselves
};

/// Own rows of parameters and of the optimizer's states, without padding, and counts of updates. Waits for the device;
/// allocates nothing: `memory` (undefined where there is nothing to save) has as many bytes. Throws std::logic_error if
/// it hasn't.
void take_snapshot(const SnapshotContext& context, const std::vector<UnitState>& units, const at::Tensor& memory,
                   Snapshot& into);

/// The bytes of `tensor` (contiguous) into host memory of that size.
void copy_to_host(const at::Tensor& tensor, std::span<char> into);

}  // namespace vramfit
