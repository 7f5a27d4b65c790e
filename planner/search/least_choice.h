// Of all choices for a job the one whose states need least: a bound for all of them, before anything is chosen.
#pragma once

#include <optional>

#include "planner/plan.h"
#include "planner/search/search.h"

namespace vramfit {

/// What states and gradients need at least, split over all ranks.
struct LeastOfAll {
  Bytes total;                // at most that of each choice
  bool is_ruled_out = false;  // none of them can fit
};

/// Of all choices that the request leaves for `job`, which is resolved. None where it isn't known: states may be
/// offloaded, or the runtime isn't bounded.
std::optional<LeastOfAll> least_of_all(const Job& job, const PlanRequest& request, Evaluator& evaluator);

}  // namespace vramfit
