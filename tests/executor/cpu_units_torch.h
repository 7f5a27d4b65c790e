// A rank's units on CPU, for tests that need no trainer around them.
#pragma once

#include <vector>

#include "executor/sharding/process_groups.h"
#include "executor/sharding/unit_state_torch.h"
#include "job/job.h"

namespace vramfit::testing {

/// What is passed must outlive the units.
inline UnitContext context_on_cpu(const Graph& graph, const Job& job, const UnitLayout& layout, ProcessGroups& groups) {
  return {.graph = graph,
          .precision = job.precision,
          .layout = layout,
          .shard_group = groups.shard(),
          .reshard_group = groups.reshard(),
          .device = at::kCPU};
}

/// All units of the layout; nothing is loaded yet.
inline std::vector<UnitState> units_on_cpu(const Graph& graph, const Job& job, const UnitLayout& layout,
                                           ProcessGroups& groups) {
  std::vector<UnitState> units;
  for (const Unit& unit : layout.units) units.emplace_back(context_on_cpu(graph, job, layout, groups), unit);
  return units;
}

}  // namespace vramfit::testing
