// The choices of a job that have no rules yet, under the names that are printed.
#pragma once

#include <string>

#include "estimator/cluster.h"
#include "estimator/job.h"

namespace vramfit {

/// Throws NotModelled("--offload params") for the first choice of `job` that can't be counted. Checks that need a graph
/// or a layout (family, wrapping) are made there.
void require_rules(const Job& job, const Cluster& cluster);

/// The command that answers for somebody's own script on such cards: "vramfit rehearse --gpus 8xH100-80GB -- torchrun
/// --nproc-per-node 8 train.py". Of several nodes one rank is played.
std::string rehearsal_of(const Cluster& cluster);

}  // namespace vramfit
