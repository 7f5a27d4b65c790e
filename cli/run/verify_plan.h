// `vramfit plan --verify phantom`: a plan is given once it has run on phantom GPUs.
#pragma once

#include <string_view>

#include "cli/run/run_plan.h"
#include "planner/objective.h"

namespace vramfit {

/// Of reserved memory, against the prediction of a plan that is given.
inline constexpr double kRehearsalTolerance = 0.01;

/// How many plans are rehearsed at most: "phantom" or "phantom:K" for --verify. Throws InputError.
int parse_verify(std::string_view text);

/// Throws InputError for a cluster without GPUs and a runtime that isn't vramfit's own, FaultError if vramfit-train or
/// the phantom's libraries are missing.
void check_can_verify(const PlanRequest& request, const ClusterChoice& choice);

/// Rehearses the plan of the best cluster for two steps. A plan that runs out of memory, needs retries, or reserves
/// other than predicted by more than kRehearsalTolerance joins the request's `rejected`, is said on stderr, and the
/// next best on the same cluster follows, up to `most` in all. Without one that passes the cluster has no plan. Throws
/// FaultError when a rehearsal fails for another reason.
void verify_on_phantoms(ClusterPlan& made, int most);

}  // namespace vramfit
