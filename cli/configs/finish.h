// What follows from all files together: which stack it is, the precision, the method and the sharding.
#pragma once

#include "cli/configs/draft.h"

namespace vramfit {

/// Sets the job fields that follow from facts; assumes what is missing.
void finish(Draft& draft);

/// Of the GPUs that the files name; 0 where they don't.
struct GpuCount {
  std::int64_t nodes = 0, per_node = 0;
};
GpuCount gpu_count(const Draft& draft);

}  // namespace vramfit
