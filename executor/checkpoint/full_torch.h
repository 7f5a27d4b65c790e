// The whole model as transformers reads it: DIR/model.safetensors and DIR/config.json.
#pragma once

#include <string>
#include <vector>

#include "executor/checkpoint/files.h"
#include "executor/sharding/collectives.h"
#include "executor/sharding/unit_state_torch.h"
#include "model_specs/graph.h"

namespace vramfit {

struct FullCheckpoint {
  const Graph& graph;
  Collectives& shard_group;
  bool writes = false;  // rank 0
  std::string directory;
  std::string config_json;
};

/// A collective call. Parameters are gathered one after the other, in the storage dtype, under their checkpoint names;
/// tied ones once. Each file appears whole or not at all; the weights come last.
void save_full(FileCalls& files, const FullCheckpoint& full, const std::vector<UnitState>& units);

}  // namespace vramfit
