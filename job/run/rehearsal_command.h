// What to run where a cluster is known but no rules answer: the user's own script on phantom GPUs.
#pragma once

#include <string>

#include "job/cluster/cluster.h"

namespace vramfit {

/// The command that answers for somebody's own script on such cards: "vramfit rehearse --gpus 8xH100-80GB -- torchrun
/// --nproc-per-node 8 train.py". Of several nodes one rank is played.
std::string rehearsal_of(const Cluster& cluster);

}  // namespace vramfit
