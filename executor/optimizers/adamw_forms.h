// AdamW as torch.optim.AdamW's other forms compute it, by LibTorch's calls on either device. What these allocate is in
// program/optimizers/adamw_forms.cpp.
#pragma once

#include "executor/optimizers/optimizers.h"

namespace vramfit {

/// foreach=True: each call takes all of a unit's parameters.
void adamw_by_lists(OptimizerCall& call);
/// foreach=False.
void adamw_by_parameter(OptimizerCall& call);

}  // namespace vramfit
