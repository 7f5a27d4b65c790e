// How to start a job's ranks on several machines, each way.
#pragma once

#include <string>
#include <vector>

#include "job/cluster/cluster.h"

namespace vramfit {

/// Command lines for torchrun, srun and mpirun that start `program` with `arguments` on every node of `cluster`;
/// several lines, the first one says what they are.
std::string commands_for_nodes(const Cluster& cluster, const std::string& program,
                               const std::vector<std::string>& arguments);

}  // namespace vramfit
