// Types that --storage-dtype and its like take.
#pragma once

#include <string_view>

#include "model_specs/dtype.h"

namespace vramfit {

/// Throws InputError for a type that nothing is trained in, with what FP8 is for.
Dtype trained_dtype(std::string_view value);

}  // namespace vramfit
