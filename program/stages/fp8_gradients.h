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

/// The scratch of LibTorch's calls that round numbers with a scale, or rows of so many elements, or add up such rows
/// first; in fp32 numbers: a chunk of their values, row by row, the largest of these, and what scales are made of.
struct ScaledScratch {
  static constexpr std::int64_t kNumbers = 3;  // for each row
  std::int64_t elements = 0, rows = 1;

  /// Elements of a row that a chunk has.
  std::int64_t width() const {
    const std::int64_t most = std::max<std::int64_t>(kBlockStatesChunk / rows / kMaximaOf, 1) * kMaximaOf;
    return std::min(ceil_div(elements, kMaximaOf) * kMaximaOf, most);
  }
  std::int64_t chunks() const { return ceil_div(elements, width()); }
  ScratchPart values() const { return {0, checked_mul(rows, width())}; }
  ScratchPart maxima() const { return {values().elements, values().elements / kMaximaOf}; }
  ScratchPart numbers() const { return {maxima().begin + maxima().elements, rows * kNumbers}; }
  std::int64_t size() const { return numbers().begin + numbers().elements; }
};

/// Of adding a gradient of `dtype` to codes: once to find the largest sum, once to round all of them.
Work work_of_fp8_addition(std::int64_t elements, Dtype dtype, DeviceKind device);
struct ScaledDtypes {
  Dtype from, to;
};
/// Of rounding `rows` rows of `elements` each with a scale for each row: a gradient that is sent, or a master.
Work work_of_scaled_rounding(std::int64_t elements, std::int64_t rows, ScaledDtypes dtypes, DeviceKind device);
/// Of adding all ranks' codes of a part to those that are there.
Work work_of_fp8_parts(std::int64_t elements, std::int64_t shards, DeviceKind device);
/// Of the sum of all replicas' codes.
Work work_of_fp8_sum(const Unit& unit, std::int64_t replicas, DeviceKind device);
/// Of making numbers of all of a unit's gradients.
Work work_of_fp8_reading(const Unit& unit, DeviceKind device, KernelSource kernels);

/// Throws Excluded for what needs gradients in another form.
void require_fp8_gradients(const Job& job);

}  // namespace vramfit
