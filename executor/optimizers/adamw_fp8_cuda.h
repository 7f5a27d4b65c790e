// AdamW with averages in e4m3 and fp16, a scale for each tensor, on GPUs: LibTorch's calls over one chunk of a
// parameter after the other, twice: the first time for the scales.
#pragma once

#include "executor/optimizers/optimizers.h"

namespace vramfit {

/// States: those of program/optimizers/adamw_fp8.cpp.
void adamw_fp8_on_cuda(OptimizerCall& call);

}  // namespace vramfit
