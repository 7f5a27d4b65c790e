// Adafactor on GPUs, by LibTorch's calls.
#pragma once

#include "executor/optimizers/optimizers.h"

namespace vramfit {

/// torch.optim.Adafactor's epsilon 1 where none is set: that of the parameters' dtype.
double adafactor_epsilon(const OptimizerCall& call);

/// A chunk of rows at a time in fp32, in the call's scratch (program/optimizers/adafactor.h).
void adafactor_on_cuda(OptimizerCall& call);

}  // namespace vramfit
