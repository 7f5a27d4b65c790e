// Scratch of LibTorch 2.11's reductions on CUDA: setReduceConfig of ATen/native/cuda/Reduce.cuh, told once for all who
// sum.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "job/cluster/device.h"

namespace vramfit {

/// Partial results of thread blocks that share an output, and one counter a column of blocks. 0 where no blocks share.
struct ReduceScratch {
  Bytes partials, counters;
};

/// Sum over all elements of a contiguous tensor into one fp32 number.
ReduceScratch sum_over_all(std::int64_t elements, const Device& device);

/// Sums of each row of a contiguous [rows, width].
ReduceScratch sum_of_each_row(std::int64_t rows, std::int64_t width, const Device& device);

/// Sum of [rows, width] over its rows, in fp32; `element_bytes` as they are read. Throws NotModelled from 2 GiB on,
/// which is summed in parts.
ReduceScratch sum_over_rows(std::int64_t rows, std::int64_t width, const Device& device,
                            std::int64_t element_bytes = 2);

}  // namespace vramfit
