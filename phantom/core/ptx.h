// Kernels that PTX text declares. Registers are what a compiler would choose, so they are not known.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "phantom/core/kernels.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// By mangled name. None if the text is no PTX. A kernel with a parameter that is not understood has
/// `parameters_known` false.
PHANTOM_CORE std::optional<std::map<std::string, KernelFacts, std::less<>>> read_ptx(std::string_view text);

}  // namespace vramfit::phantom
