#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>

#include "executor/meter/meter.h"

namespace vramfit {

void Meter::install_cuda() {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const Entry& entry) {
    // An address only serves as the block's name here.
    const auto* block = reinterpret_cast<const void*>(entry.addr_);  // NOLINT(performance-no-int-to-ptr)
    if (entry.action_ == Entry::ALLOC) {
      Meter::instance().allocated(block, Bytes{static_cast<std::int64_t>(entry.size_)});
    } else if (entry.action_ == Entry::FREE_COMPLETED) {
      Meter::instance().freed(block);
    }
  });
}

}  // namespace vramfit
