// How a plan differs from the job as it was asked for, one choice at a time.
#pragma once

#include <string>
#include <vector>

#include "planner/search/search.h"

namespace vramfit {

/// `request.job` is resolved. First the job as asked for, with defaults, then with each choice of the plan added, in
/// the order of planner/dimensions/; choices that contradict without the next one are added with that. Nothing if the
/// plan is the job as asked for, or where that is not modelled.
std::vector<PlanStep> waterfall(const PlanRequest& request, const Job& chosen, Evaluator& evaluator);

}  // namespace vramfit
