// What a larger global batch would gain, for plans whose global batch nobody set.
#pragma once

#include <optional>

#include "planner/search/search.h"

namespace vramfit {

/// Below this share of the plan's tokens per second a gain isn't worth saying.
inline constexpr double kLeastGain = 0.01;

/// The chosen job with larger micro-batches, while they fit, and more of them: of global batches of 2, 4, 8 and 16
/// times the plan's the smallest that gains nearly as much as the largest. All other choices stay, so that a search
/// with that global batch finds a job at least as fast. None if the global batch is set or follows from what is, or
/// where the gain is below kLeastGain. Each micro-batch takes a time and an attempt.
std::optional<LargerBatch> larger_batch(const PlanRequest& request, const Candidate& chosen, Evaluator& evaluator);

}  // namespace vramfit
