// The choices of a job that have no rules yet, by the name that is printed.
#pragma once

#include "estimator/cluster.h"
#include "estimator/job.h"

namespace vramfit {

/// Throws NotModelled("--offload params") for the first choice of `job` that nothing counts. What only a graph or a
/// layout can tell (a family, a wrapping) is told by those.
void require_rules(const Job& job, const Cluster& cluster);

}  // namespace vramfit
