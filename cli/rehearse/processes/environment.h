// The environment of a rehearsed command.
#pragma once

#include <cstdint>
#include <string>

#include "cli/launch/environment.h"
#include "job/cluster/cluster.h"

namespace vramfit {

/// The loader's audit library, the session, Python's statistics, Triton's driver. All children inherit them.
EnvironmentChanges phantom_environment(const std::string& library, const std::string& session);

/// What torchrun would set for this rank of the cluster; `port` is the port of the running store.
EnvironmentChanges rank_environment(const Cluster& cluster, std::int64_t rank, int port);

}  // namespace vramfit
