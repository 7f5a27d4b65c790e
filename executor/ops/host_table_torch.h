// A table that a program has as constants, as LibTorch sees it.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

namespace vramfit {

/// [n] fp32 on the host, over numbers that live as long as the process: a copy to a GPU may read them later.
at::Tensor host_table(std::span<const float> numbers);

}  // namespace vramfit
