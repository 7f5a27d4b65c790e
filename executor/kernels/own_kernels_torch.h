// Calls of own CUDA kernels with LibTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "executor/kernels/kernels.h"

namespace vramfit {

/// The library; throws std::logic_error where there is none, as a job that asks for it was refused then.
const cuda::Kernels& require_own_kernels();

/// Of fp32, bf16 and fp16.
cuda::Number number_of(at::ScalarType type);

/// On which LibTorch's functions work on the tensor's device, too; of the host's none.
cuda::Stream stream_of(const at::Tensor& tensor);

/// Throws when a launch failed.
void check_launch(int status);

}  // namespace vramfit
