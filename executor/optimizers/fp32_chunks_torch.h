// GPUs: LibTorch's calls that take one dtype, where parameters, gradients and states have several.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "executor/optimizers/optimizers.h"

namespace vramfit {

/// Whether parameters, gradients and the first state have one.
bool is_of_one_dtype(const OptimizerCall& call);

/// `step` over one chunk of elements after the other. What isn't fp32 of them, gradients, parameters and the first
/// `averages` states, becomes that in an equal share of the call's scratch (program/optimizers/fp32_chunks.h), and what
/// has changed is rounded once. Other states are given as they are.
void update_in_fp32(OptimizerCall& call, std::size_t averages, OptimizerStep step);

}  // namespace vramfit
