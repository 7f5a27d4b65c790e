// Gradients that are kept in FP8 (--gradient-dtype fp8): what adding to them on GPUs works in, and what it costs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "program/optimizers/block_states.h"
#include "program/stages/units_layout.h"
#include "program/work.h"

namespace vramfit {

/// The scratch of LibTorch's calls that add up a gradient of so many elements, in fp32 numbers: a chunk of its values,
/// one of a replica's, their largest ones, and what a scale is made of.
struct Fp8GradientScratch {
  static constexpr std::int64_t kNumbers = 4;
  std::int64_t elements = 0;

  std::int64_t chunk() const { return std::min(ceil_div(elements, kMaximaOf) * kMaximaOf, kBlockStatesChunk); }
  ScratchPart values() const { return {0, chunk()}; }
  ScratchPart of_replica() const { return {chunk(), chunk()}; }
  ScratchPart maxima() const { return {2 * chunk(), chunk() / kMaximaOf}; }
  ScratchPart numbers() const { return {maxima().begin + maxima().elements, kNumbers}; }
  std::int64_t size() const { return numbers().begin + kNumbers; }
};

/// Of adding a gradient of `dtype` to codes: once to find the largest sum, once to round all of them.
Work work_of_fp8_addition(std::int64_t elements, Dtype dtype, DeviceKind device);
/// Of making codes of a whole gradient of `dtype`, `shards` parts of `elements` each; and of adding all ranks' codes of
/// a part to those that are there.
Work work_of_fp8_coding(std::int64_t elements, std::int64_t shards, Dtype dtype, DeviceKind device);
Work work_of_fp8_parts(std::int64_t elements, std::int64_t shards, DeviceKind device);
/// Of the sum of all replicas' codes.
Work work_of_fp8_sum(const Unit& unit, std::int64_t replicas, DeviceKind device);
/// Of making numbers of all of a unit's gradients.
Work work_of_fp8_reading(const Unit& unit, DeviceKind device);

/// Throws Excluded for what needs gradients in another form.
void require_fp8_gradients(const Job& job);

}  // namespace vramfit
