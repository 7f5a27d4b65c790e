// Which of some recorded cases the next one is not above, whatever they are distributed like.
#pragma once

#include <cstddef>
#include <optional>

#include "job/cluster/confidence.h"

namespace vramfit {

/// The rank, counted from 1 for the least, of the one of `cases` values that a further value does not exceed with at
/// least this confidence, if all orders of them are equally likely: ceil((cases + 1) * confidence). None where they
/// are too few. (V. Vovk, A. Gammerman, G. Shafer, "Algorithmic Learning in a Random World", 2005; J. Lei et al.,
/// "Distribution-Free Predictive Inference for Regression", JASA 113, 2018, split conformal intervals.)
std::optional<std::size_t> covering_rank(std::size_t cases, Confidence confidence);

/// The highest confidence that `cases` values support, that of the largest of them: cases / (cases + 1), rounded down.
Confidence most_confidence(std::size_t cases);

}  // namespace vramfit
