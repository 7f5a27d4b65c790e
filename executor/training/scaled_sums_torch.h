// Sums in fp32 that become numbers of few bits with one scale, that of the largest sum (scale_of() in
// executor/optimizers/tensor_scales.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "executor/ops/kernels_torch.h"
#include "executor/ops/vectors.h"
#include "executor/optimizers/tensor_scales.h"
#include "program/stages/fp8_gradients.h"

namespace vramfit {

/// On CPU, block by block, in a thread's cache.
namespace scaled_sums {

inline constexpr std::int64_t kBlock = 1024;  // elements that are summed at a time

/// Calls use(first of the block, its sums) for all blocks of the elements; `sum` fills a block.
template <typename Sums, typename Use>
void each_block(std::int64_t elements, const Sums& sums, const Use& use) {
  kernels::parallel_elements(elements, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, kBlock> block;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    for (std::int64_t first = begin; first < end; first += kBlock) {
      const std::int64_t count = std::min(kBlock, end - first);
      sums(first, count, block.data());
      use(first, count, block.data());
    }
  });
}

/// Sums are made twice: to find the scale of the largest one, and to round them. By their bits magnitudes are ordered;
/// what is no number counts as larger than all. `write`: of an element and its sum, divided by the scale.
template <typename Sums, typename Write>
void round_sums(std::int64_t elements, const Sums& sums, const ScaledFormat& format, const Write& write, float& scale) {
  std::atomic<std::int32_t> largest = 0;
  each_block(elements, sums, [&](std::int64_t /*first*/, std::int64_t count, const float* block) {
    std::int32_t own = 0;
    for (std::int64_t i = 0; i < count; ++i) own = std::max(own, std::bit_cast<std::int32_t>(std::fabs(block[i])));
    std::int32_t before = largest.load();
    while (before < own && !largest.compare_exchange_weak(before, own)) {
    }
  });
  const float found = scale_of(std::bit_cast<float>(largest.load()), format);
  const float inverse = 1 / found;  // of a power of two
  each_block(elements, sums, [&](std::int64_t first, std::int64_t count, const float* block) {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t i = 0; i < count; ++i) write(first + i, block[i] * inverse);
  });
  scale = found;
}

}  // namespace scaled_sums

/// Numbers of few bits, flat, and their scale, [1] fp32.
struct ScaledPart {
  at::Tensor numbers, scale;
};

/// Such numbers in rows, [rows, elements], and the scale of each row, [rows] fp32; both may be strided.
struct ScaledRows {
  at::Tensor numbers, scales;
};

/// The same by LibTorch's calls over one chunk after the other, which also run on CPU tensors; they work in `scratch`,
/// ScaledScratch of fp32 numbers, and allocate nothing on GPUs. How many there are hardly grows with the rows.
class SumsByCalls {
 public:
  /// The sum of all rows, [elements], and of plain numbers where there are some, [elements].
  SumsByCalls(std::vector<ScaledRows> added, at::Tensor plain, at::Tensor scratch);
  /// Plain numbers, [rows, elements], each row for itself.
  SumsByCalls(at::Tensor plain, at::Tensor scratch);
  /// A row for each, or one for the sum.
  void round_to(const ScaledRows& rows, const ScaledFormat& format);

 private:
  static constexpr std::int64_t kLargest = 0, kLargestOfChunk = 1, kScale = 2;

  template <typename Visit>
  void each_chunk(const Visit& visit);
  at::Tensor part(ScratchPart part) const { return scratch_.narrow(0, part.begin, part.elements); }
  at::Tensor numbers(std::int64_t place) const {
    return part(sizes_.numbers()).narrow(0, place * sizes_.rows, results_);
  }
  at::Tensor of_chunk(const at::Tensor& rows) const { return rows.narrow(1, first_, count_); }
  at::Tensor values() const;
  at::Tensor results() const { return values().narrow(0, 0, results_).narrow(1, 0, count_); }
  void add_up() const;
  void find_largest() const;
  void find_scales(const ScaledFormat& format) const;

  std::vector<ScaledRows> added_;
  at::Tensor plain_, scratch_;
  ScaledScratch sizes_;
  std::int64_t results_ = 1;  // rows that are rounded
  std::int64_t first_ = 0, count_ = 0;
};

}  // namespace vramfit
