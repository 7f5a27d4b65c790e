// A memory snapshot as torch.cuda.memory._dump_snapshot writes it, for https://pytorch.org/memory_viz and
// torch.cuda._memory_viz (docs/observability.md). Where PyTorch has stack traces ours has what a block is: its label,
// the phase in which it was made, and its category.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "executor/meter/memory_segments.h"

namespace vramfit {

struct MemorySnapshot {
  const MemoryHistory& history;
  std::vector<MemorySegment> segments{};
  int device = 0;          // whose the history is
  bool is_cuda = false;    // false: blocks are segments of their own
  std::string settings{};  // of the allocator
};

/// Pickle, protocol 2.
void write_memory_snapshot(const MemorySnapshot& snapshot, std::ostream& out);

}  // namespace vramfit
