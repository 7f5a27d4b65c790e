// What a caching allocator reserves at least for a program, however well it places blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "program/program.h"

namespace vramfit {

/// A lower bound of what PyTorch's caching allocator reserves at once of the card's memory, without retries. It keeps
/// pools for each stream (c10/cuda/CUDACachingAllocator.cpp: free blocks compare by stream first): a block of one is
/// never given to another, and what was reserved for it stays. So streams whose peaks come at different moments take
/// the sum of their peaks, which is at least the peak of the sum (folded_peaks). Blocks are counted as requested, so
/// that what grows with a model's depth grows evenly. Sections that are repeated are passed through once.
Bytes least_reserved(const program::Program& program);

/// The same from the begin of a program on, as far as it is known.
class ReservedSoFar {
 public:
  /// What is allocated (1) or freed (-1).
  void add(const program::Buffer& buffer, std::int64_t sign);
  void empty_cache();
  /// What was written of a list without blocks since the last call.
  void add_new(const program::Code& main);
  Bytes peak() const { return Bytes{peak_}; }

 private:
  struct OfStream {
    std::int64_t live = 0, reserved = 0;  // since the cache was emptied
  };

  std::array<OfStream, kStreams> streams_{};
  std::int64_t reserved_ = 0, peak_ = 0;
  std::size_t read_ = 0;  // instructions
};

}  // namespace vramfit
