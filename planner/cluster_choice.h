// `--gpus` of a plan: one cluster, several to choose from, or a GPU whose number is asked for.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// A job with what was set, and the names of its fields that were.
struct SetJob {
  Job job;
  std::vector<std::string> fixed;
};

struct ClusterChoice {
  std::vector<Cluster> clusters;  // at least one
  bool asks_how_many = false;     // `clusters` are sizes of one sort, the smallest first
  /// What was set, on a cluster: a stack's defaults are others on one GPU than on several. Empty: as in the request.
  /// Throws an Error for a job that can't be there.
  std::function<SetJob(const Cluster& cluster)> job_on = {};
};

/// Nodes that "auto:" goes up to.
inline constexpr std::int64_t kMostAutoNodes = 64;

/// "8xH100-80GB"; "4xRTX4090,1xH100-80GB"; "auto:H100-80GB" for 1, 2, 4 and 8 GPUs of one node and 2 to kMostAutoNodes
/// nodes of 8; "auto:4xRTX4090" likewise for nodes of 4. Throws InputError.
ClusterChoice parse_cluster_choice(std::string_view text);

}  // namespace vramfit
