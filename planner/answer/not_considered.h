// What a search left out, and the flags that bring it in.
#pragma once

#include <string>
#include <vector>

#include "planner/plan.h"

namespace vramfit {

/// "offload to host memory (--host-memory SIZE)": what might hold a job, or make it faster, and wasn't searched because
/// nobody named it; without what the plan's answer tells of. Empty where there is nothing of the kind. `request.job` is
/// resolved.
std::vector<std::string> not_considered(const PlanRequest& request, const Plan& plan);

}  // namespace vramfit
