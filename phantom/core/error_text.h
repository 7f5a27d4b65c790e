// What CUDA says of its errors. Runtime and driver share numbers and texts, not names.
#pragma once

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// Null for a number that is no error.
PHANTOM_CORE const char* error_text(int error);

}  // namespace vramfit::phantom
