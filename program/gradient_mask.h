// --gradient-mask: child tuning (Xu et al. 2021, "Raise a Child in Large Language Model: Towards Effective and
// Generalizable Fine-tuning"). Shared by the estimator and the executor.
#pragma once

#include <cstdint>

#include "program/units_layout.h"

namespace vramfit {

/// Elements for which a random mask is drawn at once on CUDA, where each element takes two 8-byte integers.
inline constexpr std::int64_t kMaskPart = std::int64_t{1} << 22;

/// Elements of each of those two tensors: the longest trainable part that a rank holds of one parameter, at most
/// kMaskPart.
std::int64_t mask_part(const UnitLayout& layout);

}  // namespace vramfit
