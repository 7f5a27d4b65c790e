// TOML 1.0, by toml++.
#pragma once

#include <string>
#include <string_view>

#include "cli/configs/syntax/tree.h"

namespace vramfit {

/// Throws InputError naming file and line for text that isn't TOML, and for what is beyond the limits of tree.h.
ConfigNode read_toml(std::string_view text, const std::string& file);

}  // namespace vramfit
