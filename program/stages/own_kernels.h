// Which jobs have work for CUDA kernels of the engine's own, instead of several of LibTorch's functions: --kernels
// vramfit.
#pragma once

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// Throws Excluded where --kernels vramfit has CPU ranks.
void require_gpus_for_own_kernels(const Job& job, const Cluster& cluster);

/// Whether own kernels would replace dozens of calls: an update with scratch, or quantized weights made whole.
bool replaces_many_calls(const Job& job);

}  // namespace vramfit
