// Whether there is a plan at all, without the plan: a fraction of its time where many sizes are tried.
#pragma once

#include "planner/plan.h"

namespace vramfit {

/// Whether make_plan would choose a job. Throws an Error where the job can't be on the cluster, as make_plan does; a
/// job that isn't modelled doesn't fit.
bool any_fits(const PlanRequest& request);

}  // namespace vramfit
