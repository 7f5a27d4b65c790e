// AdamW by own CUDA kernels (executor/kernels), each number read and written once: updates for which LibTorch has no
// function, and which its functions need scratch for otherwise.
#pragma once

#include "executor/kernels/kernels.h"
#include "executor/optimizers/optimizers.h"

namespace vramfit {

/// States: codes of the first and second moment, their scales, the count.
void update_coded_by_kernel(OptimizerCall& call, cuda::StateCodes kind);
template <cuda::StateCodes kKind>
void update_coded_by_kernel(OptimizerCall& call) {
  update_coded_by_kernel(call, kKind);
}

/// States: two averages of any dtype, the count. Parameters are rounded to nearest, or stretch by stretch.
void update_plain_by_kernel(OptimizerCall& call);
void update_rounding_by_kernel(OptimizerCall& call);

/// States: averages in e4m3 and fp16, their scales, the count. Works in the call's scratch.
void update_scaled_by_kernel(OptimizerCall& call);

}  // namespace vramfit
