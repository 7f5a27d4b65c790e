#include "executor/meter/memory_segments.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>

namespace vramfit {

namespace {

Bytes bytes_of(std::size_t size) { return Bytes{static_cast<std::int64_t>(size)}; }

const char* state_of(const c10::CachingDeviceAllocator::BlockInfo& block) {
  if (block.allocated) return "active_allocated";
  return block.active ? "active_pending_free" : "inactive";
}

}  // namespace

std::vector<MemorySegment> cuda_segments() {
  std::vector<MemorySegment> segments;
  for (const auto& info : c10::cuda::CUDACachingAllocator::snapshot({0, 0}, false).segments) {
    MemorySegment segment{.device = info.device,
                          .address = info.address,
                          .stream = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(info.stream)),
                          .total = bytes_of(info.total_size),
                          .allocated = bytes_of(info.allocated_size),
                          .active = bytes_of(info.active_size),
                          .requested = bytes_of(info.requested_size),
                          .large = info.is_large,
                          .expandable = info.is_expandable};
    for (const auto& block : info.blocks) {
      segment.blocks.push_back(
          {.size = bytes_of(block.size), .requested = bytes_of(block.requested_size), .state = state_of(block)});
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

std::vector<MemorySegment> cpu_segments(const MemoryHistory& history) {
  std::vector<MemorySegment> segments;
  for (const auto& [address, live] : history.live()) {
    segments.push_back({.address = address,
                        .total = live.bytes,
                        .allocated = live.bytes,
                        .active = live.bytes,
                        .requested = live.bytes,
                        .blocks = {{.size = live.bytes, .requested = live.bytes, .state = "active_allocated"}}});
  }
  std::ranges::sort(segments, {}, &MemorySegment::address);
  return segments;
}

}  // namespace vramfit
