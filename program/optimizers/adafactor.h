// Where the sums of an Adafactor update, and what a GPU's update works in, have their numbers: program/optimizers
// counts them, executor/optimizers takes them apart.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/text/units.h"

namespace vramfit::adafactor {

/// Elements that LibTorch's calls update at a time on CUDA, if no row has more.
inline constexpr std::int64_t kChunk = std::int64_t{1} << 20;

/// Of a matrix: the sum of squares of each column of the gradient, that of the averages of rows, and that of squares of
/// the parameter. Of a vector: the last one.
constexpr std::int64_t sums_of(std::int64_t columns) { return columns > 1 ? columns + 2 : 1; }

/// fp32: numbers, two chunks, a row of ones, and a number for each row of a chunk.
struct Scratch {
  static constexpr std::int64_t kNumbers = 64;
  std::int64_t elements = 0, longest_row = 1;

  std::int64_t chunk() const { return std::min(elements, std::max(kChunk, longest_row)); }
  std::int64_t part(int number) const { return checked_add(kNumbers, checked_mul(number, chunk())); }
  std::int64_t size() const { return part(4); }
};

/// What own kernels work in instead, in numbers of fp32: two sums in fp64 for each thread block. A parameter has one
/// block for every kRowsOfBlock rows, at most kMostBlocks. A vector is one row, and a matrix has two columns or more,
/// so no parameter has more rows than half of its unit's elements.
inline constexpr std::int64_t kRowsOfBlock = 8, kMostBlocks = 512;
constexpr std::int64_t own_scratch(std::int64_t elements) {
  return 4 * std::clamp<std::int64_t>(ceil_div(elements / 2, kRowsOfBlock), 1, kMostBlocks);
}

}  // namespace vramfit::adafactor
