// Adafactor on GPUs, by LibTorch's calls or own kernels.
#pragma once

#include "executor/optimizers/optimizers.h"

namespace vramfit {

/// torch.optim.Adafactor's epsilon 1 where none is set: that of the parameters' dtype.
double adafactor_epsilon(const OptimizerCall& call);

/// A chunk of rows at a time in fp32, in the call's scratch (program/optimizers/adafactor.h).
void adafactor_on_cuda(OptimizerCall& call);

/// A parameter after the other, by own kernels (executor/kernels/adafactor.cu).
void adafactor_by_kernel(OptimizerCall& call);

}  // namespace vramfit
