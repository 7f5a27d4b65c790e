// AdamW (Loshchilov and Hutter 2019) by LibTorch's fused kernel: one call over a unit's flat tensors.
#pragma once

#include "executor/optimizers/optimizers.h"

namespace vramfit {

/// Parameters, gradients and states must have one dtype: the kernel takes no other combination (LibTorch throws).
/// Allocates nothing on CPU and CUDA. Runs on either.
void fused_adamw(OptimizerCall& call);

}  // namespace vramfit
