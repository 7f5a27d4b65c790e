// --gradient-mask: child tuning (Xu et al. 2021, "Raise a Child in Large Language Model: Towards Effective and
// Generalizable Fine-tuning"). Shared by the estimator and the executor.
#pragma once

#include <cstdint>
#include <vector>

#include "job/device.h"
#include "job/job.h"
#include "program/counted_blocks.h"
#include "program/units_layout.h"

namespace vramfit {

/// Elements for which a random mask is drawn at once on CUDA, where each element takes two 8-byte integers.
inline constexpr std::int64_t kMaskPart = std::int64_t{1} << 22;

/// Elements of each of those two tensors: the longest trainable part that a rank holds of one parameter, at most
/// kMaskPart.
std::int64_t mask_part(const UnitLayout& layout);

/// The mask while a step is counted: the counting side of executor/gradient_mask_torch.h, call for call.
class MaskCounter {
 public:
  MaskCounter(const Job& job, const UnitLayout& layout, const Device& device, CountedBlocks& blocks)
      : job_(job), layout_(layout), device_(device), blocks_(blocks) {}

  /// A mask that is read from a file: one byte per trainable element of the shard.
  void load();
  void apply();

 private:
  const Job& job_;
  const UnitLayout& layout_;
  const Device& device_;
  CountedBlocks& blocks_;
  std::vector<Block> masks_;
};

}  // namespace vramfit
