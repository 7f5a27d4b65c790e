// YAML 1.1 as PyYAML's safe loader reads it, through libyaml's events.
#pragma once

#include <string>
#include <string_view>

#include "cli/configs/syntax/tree.h"

namespace vramfit {

/// One document. Throws InputError naming file and line for text that isn't YAML, for tags other than YAML's own, for
/// keys that are no scalars, and for what is beyond the limits of tree.h. A key that is repeated has its last value.
ConfigNode read_yaml(std::string_view text, const std::string& file);

/// What a plain scalar means: `1e-4`, `yes`, `~`, `0o17`.
ConfigNode plain_yaml_scalar(std::string_view text, int line);

}  // namespace vramfit
