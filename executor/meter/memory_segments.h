// How a rank's memory is laid out at one moment: what a device's allocator holds, and the blocks in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/meter/memory_history.h"

namespace vramfit {

struct MemoryBlock {
  Bytes size{}, requested{};
  std::string state{};  // "active_allocated", "active_pending_free" or "inactive"
};

struct MemorySegment {
  int device = 0;
  std::uint64_t address = 0;
  std::int64_t stream = 0;
  Bytes total{}, allocated{}, active{}, requested{};
  bool large = true, expandable = false;
  std::vector<MemoryBlock> blocks{};  // from the segment's address on, without gaps
};

/// Of the caching allocators of this process's CUDA devices.
std::vector<MemorySegment> cuda_segments();

/// On CPU ranks every block is a segment of its own, as nothing is cached.
std::vector<MemorySegment> cpu_segments(const MemoryHistory& history);

}  // namespace vramfit
