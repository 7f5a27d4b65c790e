// `--gpus` of a plan: one cluster, several to choose from, or a GPU whose number is asked for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"

namespace vramfit {

struct ClusterChoice {
  std::vector<Cluster> clusters;  // at least one
  bool asks_how_many = false;     // `clusters` are sizes of one sort, the smallest first
};

/// Nodes that "auto:" goes up to.
inline constexpr std::int64_t kMostAutoNodes = 64;

/// "8xH100-80GB"; "4xRTX4090,1xH100-80GB"; "auto:H100-80GB" for 1, 2, 4 and 8 GPUs of one node and 2 to kMostAutoNodes
/// nodes of 8; "auto:4xRTX4090" likewise for nodes of 4. With a global batch that is set (0: it isn't), those of one
/// node are the numbers that divide it, as 7 does where 2, 4 and 8 don't. Throws InputError.
ClusterChoice parse_cluster_choice(std::string_view text, std::int64_t global_batch = 0);

}  // namespace vramfit
