#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>

#include "executor/kernels/own_kernels_torch.h"
#include "tests/executor/kernels/kernel_place_torch.h"
#include "tests/support/why_skipped.h"

namespace vramfit::testing {

std::string why_skipped() { return c10::cuda::device_count() == 0 ? "there is no GPU here" : ""; }

at::Device kernel_device() { return {at::kCUDA, 0}; }

int multiprocessors() { return at::cuda::getDeviceProperties(0)->multiProcessorCount; }

/// Without the library nothing would be tested.
PlacedKernels::PlacedKernels(bool /*backwards*/) { require_own_kernels(); }
PlacedKernels::~PlacedKernels() = default;

}  // namespace vramfit::testing
