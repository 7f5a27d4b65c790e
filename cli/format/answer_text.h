// The answer of `vramfit plan` as text: the best plan, what training costs with it, and what came of each cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/format/terminal.h"
#include "planner/answer/largest_model.h"

namespace vramfit {

/// Ends in a newline. `tokens`: to train on, for hours and money. `larger`: models that have no plan.
std::string answer_text(const PlanAnswer& answer, std::optional<std::int64_t> tokens,
                        const std::vector<TooLarge>& larger, const Terminal& terminal);

}  // namespace vramfit
