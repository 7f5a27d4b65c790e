// The CUDA side of the meter, beside what the trace tracker counts.
#pragma once

#include "estimator/device.h"
#include "estimator/estimate.h"

namespace vramfit {

/// Whether this process sees a CUDA device.
bool has_cuda();

/// Picks the local rank's device, sets the allocator up as `--allocator` says, and returns the device's facts. Throws
/// FaultError "--device cuda: ..." without a usable device, InputError when PYTORCH_ALLOC_CONF or
/// PYTORCH_CUDA_ALLOC_CONF says otherwise.
Device open_cuda_device(int local_rank, const std::string& allocator);

/// Peaks of allocated and reserved memory by the caching allocator's own statistics, its retries, and what rounding
/// and fragmentation make of the requests.
void add_cuda_peaks(RankEstimate& rank);

}  // namespace vramfit
