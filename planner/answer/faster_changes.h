// What stands beside a plan that changes of the result would make faster.
#pragma once

#include <span>
#include <vector>

#include "planner/plan.h"
#include "planner/search/changes.h"
#include "planner/search/search.h"

namespace vramfit {

/// Adds to the plan's alternatives what would be faster if more were allowed, or if last resorts were for more than
/// where nothing else fits. `groups` are those to search, from that of the plan on.
void add_faster_changes(const PlanRequest& request, std::span<const std::vector<Change>> groups, Evaluator& evaluator,
                        Plan& plan);

}  // namespace vramfit
