// Which checkpoints lie in a directory: step-00000010/ is the one after step 10 (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

std::string checkpoint_name(std::int64_t step);
/// The step in "step-00000010"; nothing for any other name.
std::optional<std::int64_t> checkpoint_step(std::string_view name);

/// Steps of the checkpoints among names, ascending.
std::vector<std::int64_t> steps_among(const std::vector<std::string>& names);

/// Steps of the committed checkpoints, ascending, those that are links to one included: they can be read. None when the
/// directory isn't there. Whether they are whole is not looked at.
std::vector<std::int64_t> committed_steps(const std::string& directory);

}  // namespace vramfit
