// AdamW whose averages are codes in blocks, or of another dtype than parameters, on GPUs: LibTorch's calls over one
// chunk of elements after the other, in scratch that the program has for them (program/optimizers/block_states.h), so
// that none allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/optimizers/dynamic_map.h"
#include "executor/optimizers/optimizers.h"
#include "program/optimizers/block_states.h"

namespace vramfit {

/// Values of the first and the second moment's codes, then the borders between them, each from a multiple of a quarter.
using BlockTables = std::array<float, BlockScratch::kTables>;

template <typename First, typename Second>
constexpr BlockTables block_tables() {
  BlockTables tables{};
  std::size_t begin = 0;
  const auto add = [&](const auto& part) {
    for (std::size_t i = 0; i < part.size(); ++i) tables[begin + i] = part[i];
    begin += tables.size() / 4;
  };
  add(First::kValues);
  add(Second::kValues);
  add(borders_of(First::kSorted, true));
  add(borders_of(Second::kSorted, false));
  return tables;
}

struct BlockForm {
  std::span<const float> tables;
  std::int64_t codes = 0;  // of a moment; 0: its state has the numbers themselves
  std::int64_t block = 1;
  std::int64_t zero_of_first = 0;  // DynamicCodes::kZero; the second moment's is 0
  std::int64_t codes_per_byte = 1;
  bool is_e4m3 = false;  // numbers of that format, with scales
};

/// States: codes (or numbers) of the first and second moment, the scales of codes, the count.
void update_blocks_on_cuda(OptimizerCall& call, const BlockForm& form);

/// The same for one kind of codes of each moment.
template <typename First, typename Second, std::int64_t kBlock>
void update_blocks_on_cuda(OptimizerCall& call) {
  static constexpr BlockTables kTables = block_tables<First, Second>();
  update_blocks_on_cuda(call, {.tables = kTables,
                               .codes = First::kValues.size(),
                               .block = kBlock,
                               .zero_of_first = First::kZero,
                               .codes_per_byte = First::kPerByte});
}

/// The same with numbers of any dtype.
inline void update_chunks_on_cuda(OptimizerCall& call) { update_blocks_on_cuda(call, {.tables = {}}); }

}  // namespace vramfit
