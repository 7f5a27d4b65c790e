// What is said where nothing fits: what is missing, and what would help.
#pragma once

#include "planner/plan.h"
#include "planner/search/search.h"

namespace vramfit {

/// Fills in `plan.why`, and as alternatives what fits without a choice that was set, or with a change of the result;
/// and the larger cluster that would do. `smallest` is the job that needs least of those of `request`, which is
/// resolved; `asked` isn't. Without names_remedies only says what is missing.
void explain_no_plan(const PlanRequest& request, const PlanRequest& asked, Evaluator& evaluator, const Job& smallest,
                     Plan& plan);

/// Adds host memory and other clusters to what was explained so while the request named neither.
void explain_elsewhere(const PlanRequest& request, const PlanRequest& asked, Evaluator& evaluator, Plan& plan);

}  // namespace vramfit
