// What a caching allocator reserves at least for a program, however well it places blocks.
#pragma once

#include "program/program.h"

namespace vramfit {

/// A lower bound of what PyTorch's caching allocator reserves at once of the card's memory, without retries. It keeps
/// pools for each stream (c10/cuda/CUDACachingAllocator.cpp: free blocks compare by stream first): a block of one is
/// never given to another, and what was reserved for it stays. So streams whose peaks come at different moments take
/// the sum of their peaks, which is at least the peak of the sum (folded_peaks). Blocks are counted as requested, so
/// that what grows with a model's depth grows evenly. Sections that are repeated are passed through once.
Bytes least_reserved(const program::Program& program);

}  // namespace vramfit
