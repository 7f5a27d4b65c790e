// The forms of torch.optim.AdamW in which LibTorch's calls make tensors: foreach=True, over lists of a unit's
// parameters, and foreach=False, parameter by parameter. executor/optimizers/adamw_forms.cpp makes the calls.
#pragma once

#include <vector>

#include "program/optimizers/optimizers.h"

namespace vramfit {

/// Numbers in fp32 that a GPU's update finds of the count of updates, as the host doesn't know that.
inline constexpr std::int64_t kAdamwFormNumbers = 64;

std::vector<UpdateTemporary> temporaries_of_adamw(const Unit& unit, const UnitUpdate& update);
Work work_of_adamw_calls(const UnitUpdate& update);

}  // namespace vramfit
