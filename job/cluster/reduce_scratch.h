// Scratch of LibTorch 2.11's reductions on CUDA: setReduceConfig of ATen/native/cuda/Reduce.cuh, told once for all who
// sum.
#pragma once

#include <cstdint>
#include <vector>

#include "base/text/units.h"
#include "job/cluster/device.h"

namespace vramfit {

/// Partial results of thread blocks that share an output, and one counter a column of blocks. 0 where no blocks share.
struct ReduceScratch {
  Bytes partials, counters;
};

/// The parts, one behind the other, in which a reduction goes over `elements` of `element_bytes` each: halves of halves
/// until 32 bits hold the offset of each part's last element (ATen/TensorIterator.cpp: can_use_32bit_indexing,
/// SplitUntil32Bit). Each part is a kernel of its own, with scratch of its own.
std::vector<std::int64_t> indexed_parts(std::int64_t elements, std::int64_t element_bytes);

/// Sum over all elements of a contiguous tensor into one fp32 number.
ReduceScratch sum_over_all(std::int64_t elements, const Device& device);

/// Sums of each row of a contiguous [rows, width].
ReduceScratch sum_of_each_row(std::int64_t rows, std::int64_t width, const Device& device);

/// Sum of [rows, width] over its rows, in fp32; `element_bytes` as they are read. Throws NotModelled from 2 GiB on,
/// which is summed in parts.
ReduceScratch sum_over_rows(std::int64_t rows, std::int64_t width, const Device& device,
                            std::int64_t element_bytes = 2);

}  // namespace vramfit
