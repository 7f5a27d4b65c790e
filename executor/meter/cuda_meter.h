// The CUDA side of the meter, besides what the trace tracker counts.
#pragma once

#include "job/cluster/device.h"
#include "program/files/rank_memory.h"

namespace vramfit {

/// Whether this process sees a CUDA device.
bool has_cuda();

/// Picks the local rank's device, sets the allocator up as `--allocator` says, and returns the device's facts. Throws
/// FaultError "--device cuda: ..." without a usable device, InputError when PYTORCH_ALLOC_CONF or
/// PYTORCH_CUDA_ALLOC_CONF says otherwise.
Device open_cuda_device(int local_rank, const std::string& allocator);

/// Creates the cuBLAS handle of this thread and its workspace, and cublasLt's if products go there: at load, so that
/// the first step allocates as the others do.
void make_cublas_handle(bool uses_cublaslt);

/// What the allocator of the current CUDA device holds now, and how often it has had to free its cache to go on.
struct DeviceMemory {
  Bytes allocated, reserved;
  std::int64_t retries = 0;
};
DeviceMemory device_memory();

/// Host memory that PyTorch has pinned and keeps, handed out or not.
Bytes pinned_host_memory();

/// Peaks of allocated and reserved memory over the rank's phases, the allocator's retries, what rounding and
/// fragmentation make of the requests, and what the card shows beyond the allocator (other processes on it included).
void add_cuda_peaks(RankEstimate& rank);

}  // namespace vramfit
