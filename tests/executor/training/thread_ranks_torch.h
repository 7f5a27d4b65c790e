// Ranks that are threads of one process, for tests of what they compute. Collectives work on each other's tensors
// directly: Gloo's connections would take most of the time of small jobs. Processes over Gloo are tests/run.
#pragma once

#include <cstdint>
#include <functional>

#include "executor/sharding/process_groups.h"

namespace vramfit::testing {

/// Runs `body` once per rank, each on a thread of its own, and rethrows the first error, which also ends whatever the
/// others wait for. `shard_ranks` neighbours hold the shards of one copy; of them `reshard_ranks` neighbours (0: none)
/// keep slices of one copy after forward.
void run_rank_threads(int world, std::int64_t shard_ranks, const std::function<void(ProcessGroups&)>& body,
                      std::int64_t reshard_ranks = 0);

}  // namespace vramfit::testing
