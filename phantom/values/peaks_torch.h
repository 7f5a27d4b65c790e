// Peaks of PyTorch's caching allocator, told to core after each operator, so that a process that is killed leaves those
// of its last moment.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>

#include "phantom/values/core.h"

// Allocators of all devices have one interface since PyTorch 2.9; that of CUDA alone, before it, needs CUDA's headers.
#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
#define VRAMFIT_SEES_PEAKS 1
#include <c10/core/CachingDeviceAllocator.h>
#endif
#endif

namespace vramfit::values {

#ifdef VRAMFIT_SEES_PEAKS
inline void tell_peaks() {
  static auto* const kAllocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
  static std::atomic<bool> counts{kAllocator != nullptr};
  static std::array<std::atomic<std::int64_t>, 64> told{};  // of each card, what both peaks were together
  if (!counts.load(std::memory_order_relaxed)) return;
  try {
    const c10::DeviceIndex card = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index();
    const auto stats = kAllocator->getDeviceStats(card);
    const std::int64_t requested = stats.requested_bytes[0].peak, allocated = stats.allocated_bytes[0].peak;
    auto& last = told.at(static_cast<std::size_t>(card));
    if (last.exchange(requested + allocated, std::memory_order_relaxed) == requested + allocated) return;
    vramfit_peaks_seen(requested, allocated);
  } catch (const std::exception&) {  // an allocator that keeps no statistics
    counts = false;
  }
}
#else
inline void tell_peaks() {}
#endif

}  // namespace vramfit::values
