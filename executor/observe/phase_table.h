// What a run shows at its end: the peak of each phase, next to the plan's prediction.
#pragma once

#include <string>
#include <vector>

#include "program/files/rank_memory.h"

namespace vramfit {

/// A table in MiB that ends in a newline. `predicted` may be null. On CPU ranks requested, allocated and reserved are
/// one figure, shown once.
std::string phase_table(const RankEstimate& measured, const RankEstimate* predicted, bool is_cpu);

/// The prediction for a rank; null when there is none.
const RankEstimate* prediction_of(const std::vector<RankEstimate>& predicted, std::int64_t rank);

}  // namespace vramfit
