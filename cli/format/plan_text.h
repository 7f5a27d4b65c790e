// A plan as text for the user: what was chosen and why, its breakdown, and alternatives.
#pragma once

#include <string>

#include "cli/format/terminal.h"
#include "planner/plan.h"

namespace vramfit {

/// Ends in a newline. Without a chosen job: "NO PLAN: " and what would help. `decision`: lines that belong to the first
/// ones, behind the speed.
std::string plan_text(const PlanRequest& request, const Plan& plan, const Terminal& terminal,
                      const std::string& decision = "");

}  // namespace vramfit
