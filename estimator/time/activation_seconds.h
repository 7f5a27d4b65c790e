// How long a step computes with activations: the part of its time that a runtime's own work on weights and gradients,
// in buckets and groups, has no share in.
#pragma once

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "program/program.h"

namespace vramfit {

/// Of a step after the first, the seconds in which the compute stream runs kernels that read or write activations,
/// logits or what the loss makes of them. At most compute_seconds of seconds_of(). What blocks of the engine run, which
/// no other runtime has, isn't counted.
double activation_seconds(const program::Program& program, const Cluster& cluster, const Efficiency& efficiency);

}  // namespace vramfit
