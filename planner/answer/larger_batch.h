// What a larger global batch would gain, for plans whose global batch nobody set.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace vramfit {

/// Below this share of the plan's tokens per second a gain isn't worth saying.
inline constexpr double kLeastGain = 0.01;

/// Of global batches of 2, 4, 8 and 16 times the plan's the smallest that gains nearly as much as the largest, tried
/// with the plan's other choices, and what a plan with that global batch answers. Under PyTorch's runtimes its other
/// choices stay as they are, so that a plan may be faster. None if the global batch is set or follows from what is, or
/// where the gain is below kLeastGain. `asked`: with defaults still open. `last_resorts`: the plan's.
std::optional<LargerBatch> larger_batch(const PlanRequest& request, const PlanRequest& asked,
                                        const std::vector<std::string>& last_resorts, const Candidate& chosen,
                                        Evaluator& evaluator);

}  // namespace vramfit
