// Reads a program for seconds: a simulation of the host, which launches kernels, of the streams that run them, and of
// one stream for each axis's collectives. What overlaps is what waits allow. A prediction, never a measurement.
#pragma once

#include <span>
#include <vector>

#include "estimator/time/efficiency.h"
#include "estimator/time/step_time.h"
#include "job/cluster/cluster.h"
#include "program/program.h"

namespace vramfit {

/// One training step after the first; load isn't counted. A step begins when the one before it is done.
StepTime seconds_of(const program::Program& program, const Cluster& cluster);
StepTime seconds_of(const program::Program& program, const Cluster& cluster, const Efficiency& efficiency);
/// Others have the context of the card alone outside the allocator, which decides whether managed memory has room.
StepTime seconds_of(const program::Program& program, const Cluster& cluster, const Efficiency& efficiency,
                    Bytes outside_allocator);

/// Likewise of a pipeline, stage by stage: a transfer begins when both its ends have started it and the one before it
/// on the same way is done. The step ends with its last stage. Throws std::invalid_argument where stages wait for each
/// other, which fault_between (program/readers/check.h) explains, and for transfers in a section that is repeated.
std::vector<StepTime> seconds_of(std::span<const program::Program> stages, const Cluster& cluster);
std::vector<StepTime> seconds_of(std::span<const program::Program> stages, const Cluster& cluster,
                                 const Efficiency& efficiency);

}  // namespace vramfit
