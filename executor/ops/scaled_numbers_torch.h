// Numbers of few bits with one scale by own CUDA kernels: flat fp16 numbers, or e4m3 codes as bytes, and [1] fp32.
#pragma once

#include <ATen/core/Tensor.h>

namespace vramfit {

/// numbers x scale, rounded once to what `to` has, in one pass.
void scaled_numbers_by_kernel(const at::Tensor& numbers, const at::Tensor& scale, const at::Tensor& to);

/// fp32 numbers become fp16 ones with the scale of the largest; nothing else is needed meanwhile.
void round_scaled_by_kernel(const at::Tensor& from, const at::Tensor& numbers, const at::Tensor& scale);

}  // namespace vramfit
