// Optimizer states in blocks: codes of one byte or half a byte, each block's with one fp32 scale, the largest magnitude
// in it (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861). What CUDA updates of them
// work in, which program/optimizers counts and executor/optimizers takes apart.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/text/units.h"
#include "program/optimizers/optimizers.h"

namespace vramfit {

/// Elements that LibTorch's calls update at a time on CUDA: a power of two, and a multiple of every block.
inline constexpr std::int64_t kBlockStatesChunk = std::int64_t{1} << 20;

/// Elements whose largest magnitude calls on CUDA find at once, where a scale is that of a whole tensor.
inline constexpr std::int64_t kMaximaOf = 256;

/// A part of the scratch, in fp32 numbers from its start.
struct ScratchPart {
  std::int64_t begin = 0, elements = 0;
};

/// Rows of scratch, four in all, and with two of them for 8 bytes each, where random words are drawn, eight.
inline constexpr int kRows = 4, kRowsWithWords = 8;

/// The scratch of an update of `elements`: tables and numbers, rows of a chunk, the scales of two states' blocks.
struct BlockScratch {
  static constexpr std::int64_t kTables = 1024, kNumbers = 64;
  std::int64_t elements = 0, block = 1;
  int rows = kRows;

  std::int64_t chunk() const { return std::min(elements, kBlockStatesChunk); }
  ScratchPart tables() const { return {0, kTables}; }
  ScratchPart numbers() const { return {kTables, kNumbers}; }
  ScratchPart row(int number) const { return {checked_add(kTables + kNumbers, number * chunk()), chunk()}; }
  ScratchPart scales(int number) const {
    return {checked_add(row(rows).begin, number * blocks_of(chunk())), blocks_of(chunk())};
  }
  std::int64_t size() const { return scales(2).begin; }

 private:
  std::int64_t blocks_of(std::int64_t count) const { return ceil_div(count, block); }
};

// Of AdamW's updates.

/// Elements of fp32 that LibTorch's calls on CUDA work in, with `rows` rows of a chunk. A loop on CPU and own kernels
/// need none.
std::int64_t adamw_scratch(const UnitUpdate& update, std::int64_t block, int rows = kRows);

/// States in blocks. On CPU one loop; on CUDA LibTorch's calls (executor/optimizers/block_adamw_cuda.cpp), or an own
/// kernel.
Work work_of_block_adamw(const UnitUpdate& update, std::int64_t block, std::int64_t codes_per_byte);

/// States of another dtype than the parameters, on CUDA.
Work work_of_adamw_in_chunks(const UnitUpdate& update);
/// The same, or with stochastic rounding, by one loop or own kernel that reads and writes each number once.
Work work_of_adamw_at_once(const UnitUpdate& update);

/// The row of an AdamW that keeps codes of both averages, one or several in a byte, a scale for each block of them, and
/// the count.
template <std::int64_t kBlock, std::int64_t kPerByte>
struct BlockAdamw {
  static constexpr std::array<OptimizerState, 5> kStates{
      {{.name = "exp_avg", .covers = kPerByte, .dtype = Dtype::u8},
       {.name = "exp_avg_sq", .covers = kPerByte, .dtype = Dtype::u8},
       {.name = "exp_avg_absmax", .covers = kBlock, .dtype = Dtype::f32},
       {.name = "exp_avg_sq_absmax", .covers = kBlock, .dtype = Dtype::f32},
       {.name = "step", .holds = OptimizerState::Holds::updates}}};

  static Work work(const UnitUpdate& update) { return work_of_block_adamw(update, kBlock, kPerByte); }
  static std::int64_t scratch(const UnitUpdate& update) { return adamw_scratch(update, kBlock); }

  static constexpr Optimizer kRow{.states = kStates,
                                  .work = work,
                                  .block = kBlock,
                                  .scratch = scratch,
                                  .implementations = kFusedOnly,
                                  .pytorch = {},
                                  .pytorch_step = nullptr};
};

}  // namespace vramfit
