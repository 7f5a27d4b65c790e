// Which jobs have work for CUDA kernels of the engine's own, instead of several of LibTorch's functions: --kernels
// vramfit.
#pragma once

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Throws Excluded where --kernels vramfit has CPU ranks.
void require_gpus_for_own_kernels(const Job& job, const Cluster& cluster);
/// The same where it changes nothing.
void require_work_for_own_kernels(const Job& job, const Graph& graph);

}  // namespace vramfit
