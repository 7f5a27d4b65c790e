// --gradient-mask: child tuning (Xu et al. 2021, "Raise a Child in Large Language Model: Towards Effective and
// Generalizable Fine-tuning"). Shared by the estimator and the executor.
#pragma once

#include <cstdint>

#include "program/stages/units_layout.h"
#include "program/work.h"

namespace vramfit {

/// Elements for which a random mask is drawn at once on CUDA, where each element takes two 8-byte integers.
inline constexpr std::int64_t kMaskPart = std::int64_t{1} << 22;

/// Elements of each of those two tensors: the longest trainable part that a rank holds of one parameter, at most
/// kMaskPart.
std::int64_t mask_part(const UnitLayout& layout);

/// Of masking a rank's gradient shards. A mask from a file is read along with the gradient; drawing one takes about 15
/// passes over 8 bytes an element, read and written (executor/training/gradient_mask.cpp, mask_by_calls).
Work mask_work(const Job& job, const UnitLayout& layout);

}  // namespace vramfit
