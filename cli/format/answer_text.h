// The answer of `vramfit plan` as text: the best plan, what training costs with it, and what came of each cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/format/terminal.h"
#include "planner/objective.h"

namespace vramfit {

/// Ends in a newline. `tokens`: to train on, for hours and money.
std::string answer_text(const PlanAnswer& answer, std::optional<std::int64_t> tokens, const Terminal& terminal);

}  // namespace vramfit
