// Reads a program for seconds: a simulation of the host, which launches kernels, of the streams that run them, and of
// one stream for each axis's collectives. What overlaps is what waits allow. A prediction, never a measurement.
#pragma once

#include "estimator/costs.h"
#include "estimator/step_time.h"
#include "job/cluster.h"
#include "program/program.h"

namespace vramfit {

/// One training step after the first; load isn't counted. A step begins when the one before it is done.
StepTime seconds_of(const program::Program& program, const Cluster& cluster, const Costs& costs = vramfit::costs());

}  // namespace vramfit
