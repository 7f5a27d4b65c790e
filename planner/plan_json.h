// Writes plan.json (vramfit/plan@1). program/files/plan_reader.h reads it, so a run needs no planner.
#pragma once

#include <string>

#include "planner/plan.h"

namespace vramfit {

/// The chosen job with its model (config.json included), cluster, prediction, alternatives and search. Without a chosen
/// job: the request, `verdict` "no_plan", why, and the alternatives that would help.
std::string plan_to_json(const PlanRequest& request, const Plan& plan);

}  // namespace vramfit
