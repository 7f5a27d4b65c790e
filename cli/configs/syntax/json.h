// JSON with the line of each value.
#pragma once

#include <string>
#include <string_view>

#include "cli/configs/syntax/tree.h"

namespace vramfit {

/// Throws InputError as parse_json() does (base/json/json_value.h), and for what is beyond the limits of tree.h.
ConfigNode read_json(std::string_view text, const std::string& file);

}  // namespace vramfit
