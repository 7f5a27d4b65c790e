// How much host memory a node has for what ranks keep there (--offload, checkpoints).
#pragma once

#include <string_view>

#include "job/cluster/cluster.h"

namespace vramfit {

/// Reads `--host-memory`: "64GiB" or "64GB", of each node. Throws InputError, also for CPU ranks, whose memory the
/// cluster says already, and where the cluster says another size.
void set_host_memory(Cluster& cluster, std::string_view text);

/// What comes before a node's host memory in a cluster's text: "1x16GB,host=64GiB".
inline constexpr std::string_view kHostMemoryKey = "host=";

}  // namespace vramfit
