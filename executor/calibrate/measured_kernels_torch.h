// What is measured, and in which sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include "executor/sharding/process_groups.h"
#include "job/cluster/device.h"
#include "program/files/measurements.h"

namespace vramfit {

/// Where and how long.
struct MeasuringPlace {
  Device device;
  at::Device place;
  ProcessGroups& groups;  // whose ranks measure the same, in the same order
  double seconds = 0;     // in all
};

/// Products, attention, what is bound by memory, updates; on CUDA copies too; collectives, if there are several ranks;
/// the launch of a kernel.
Measurements measured_here(const MeasuringPlace& place);

}  // namespace vramfit
