// What DeepSpeed's ZeRO sends, and what a host updates for it, from a job's parameters alone: lower bounds for a
// search, which has no program of the job yet.
#pragma once

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// At most, in seconds. A step takes at least `after_backward` and, before that, the longer of `collectives` and of
/// what its compute stream runs: `kernels`, and those that work on activations (activation_seconds).
struct LeastZeroStep {
  double collectives = 0;     // of forward and backward, which follow each other
  double kernels = 0;         // that copy gradients into a bucket
  double after_backward = 0;  // the update in host memory, and ZeRO-1's and ZeRO-2's gather of what was updated
};

/// Of a step after the first one. Nothing is known, and so nothing takes time, of other runtimes and where not all
/// weights are trained. `job` is resolved, `graph` its own.
LeastZeroStep least_zero_step(const Graph& graph, const Job& job, const Cluster& cluster, const Efficiency& efficiency);

}  // namespace vramfit
