// A plan as text for the user: what was chosen and why, its breakdown, and alternatives.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cli/format/terminal.h"
#include "planner/plan.h"

namespace vramfit {

/// What whoever asked for a plan wants to know besides.
struct PlanExtras {
  std::string decision = {};  // lines that belong to the first ones, behind the speed
  /// What training takes at so many tokens per second on so many GPUs, "4.31 h, 34.5 GPU hours"; empty: nobody asked.
  std::function<std::string(double tokens_per_second, std::int64_t gpus)> cost = {};
  std::string cost_origin = {};  // then a line: what its figures follow from
};

/// Ends in a newline. Without a chosen job: "NO PLAN", what is missing, and a line for each change that would do.
std::string plan_text(const PlanRequest& request, const Plan& plan, const Terminal& terminal,
                      const PlanExtras& extras = {});

}  // namespace vramfit
