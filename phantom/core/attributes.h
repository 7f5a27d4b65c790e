// What cudaDeviceGetAttribute and cuDeviceGetAttribute answer: runtime and driver share the numbers.
#pragma once

#include <optional>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// None for a number that CUDA 13.0 does not know.
PHANTOM_CORE std::optional<int> device_attribute(int attribute, int card);

}  // namespace vramfit::phantom
