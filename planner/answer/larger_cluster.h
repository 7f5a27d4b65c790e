// Which larger cluster of the same GPUs has a plan, where the one that was asked about has none.
#pragma once

#include <optional>

#include "planner/plan.h"

namespace vramfit {

/// The smallest of those with 2, 4 or 8 GPUs in a node and then 2, 4, ... 64 nodes that holds the job. `asked` isn't
/// resolved: defaults, such as the global batch, are those of the larger cluster. Sizes that the job can't have (its
/// batch doesn't divide among the ranks) are left out. None for CPU ranks.
std::optional<LargerCluster> larger_cluster(const PlanRequest& asked);

}  // namespace vramfit
