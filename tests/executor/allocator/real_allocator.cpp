#include "tests/executor/allocator/real_allocator.h"

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>

// NOLINTBEGIN(readability-identifier-naming): LibTorch's names
namespace c10::cuda::_internal {
// Exported, and declared in no header of the wheel: torch_cuda calls it when it is loaded.
void setHasPrimaryContext(bool (*has_primary_context)(DeviceIndex));
}  // namespace c10::cuda::_internal
// NOLINTEND(readability-identifier-naming)

namespace vramfit::testing {

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

std::int64_t number(const void* address) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address));
}
void* pointer(std::int64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));  // NOLINT(performance-no-int-to-ptr)
}

c10::cuda::CUDAStream stream_of(std::int64_t handle) {
  return c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(pointer(handle)), 0);
}

PeakedSum sum(const c10::CachingAllocator::StatArray& stats) {
  const auto& all = stats[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {.current = all.current, .peak = all.peak};
}

}  // namespace

RealAllocator::RealAllocator(int streams) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex /*device*/) { return true; });
  c10::cuda::set_device(0);
  allocator::init(1);
  while (static_cast<int>(handles_.size()) < streams) {
    handles_.push_back(number(c10::cuda::getStreamFromPool(false, 0).stream()));
  }
  std::ranges::sort(handles_);
}

// What the allocator does is the process's, which one object of this class stands for.
// NOLINTBEGIN(readability-convert-member-functions-to-static, readability-make-member-function-const)
std::int64_t RealAllocator::total() const {
  std::size_t left = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
  return static_cast<std::int64_t>(total);
}

std::int64_t RealAllocator::free_bytes() const {
  std::size_t left = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&left, &total));
  return static_cast<std::int64_t>(left);
}

void RealAllocator::set_settings(const std::string& settings) { allocator::setAllocatorSettings(settings); }
void RealAllocator::set_fraction(double fraction) { allocator::setMemoryFraction(fraction, 0); }

void RealAllocator::leave(std::int64_t bytes) {
  if (ballast_ != nullptr) C10_CUDA_CHECK(cudaFree(ballast_));
  ballast_ = nullptr;
  if (bytes > 0 && free_bytes() > bytes) {
    C10_CUDA_CHECK(cudaMalloc(&ballast_, static_cast<std::size_t>(free_bytes() - bytes)));
  }
}

std::optional<std::int64_t> RealAllocator::malloc(std::int64_t bytes, int stream) {
  try {
    return number(allocator::raw_alloc_with_stream(static_cast<std::size_t>(bytes),
                                                   static_cast<cudaStream_t>(pointer(handle(stream)))));
  } catch (const c10::OutOfMemoryError&) {
    return std::nullopt;
  }
}

void RealAllocator::free(std::int64_t address) { allocator::raw_delete(pointer(address)); }

void RealAllocator::record_stream(std::int64_t address, int stream) {
  c10::DataPtr data(pointer(address), pointer(address), allocator::get()->raw_deleter(), c10::Device(c10::kCUDA, 0));
  allocator::recordStream(data, stream_of(handle(stream)));
  data.release_context();
}

void RealAllocator::empty_cache() { allocator::emptyCache(); }

void RealAllocator::drain() {
  leave(0);
  set_fraction(1);
  set_settings("expandable_segments:True,large_segment_size_mb:20");
  empty_cache();
  for (auto ranges = allocator::getExpandableSegmentSizes(0); !ranges.empty();
       ranges = allocator::getExpandableSegmentSizes(0)) {
    for (const auto& range : ranges) {
      allocator::raw_delete(
          allocator::raw_alloc_with_stream(range.is_small_pool ? 1 : std::size_t{2} << 20, range.stream));
    }
    empty_cache();
  }
}

void RealAllocator::reset_stats() {
  allocator::resetPeakStats(0);
  allocator::resetAccumulatedStats(0);
}

AllocatorStats RealAllocator::stats() const {
  const auto stats = allocator::getDeviceStats(0);
  return {.requested = sum(stats.requested_bytes),
          .allocated = sum(stats.allocated_bytes),
          .active = sum(stats.active_bytes),
          .reserved = sum(stats.reserved_bytes),
          .alloc_retries = stats.num_alloc_retries,
          .ooms = stats.num_ooms,
          .device_allocs = stats.num_device_alloc,
          .device_frees = stats.num_device_free,
          .sync_all_streams = stats.num_sync_all_streams};
}

std::vector<SegmentView> RealAllocator::segments() const {
  std::vector<SegmentView> segments;
  for (const auto& real : allocator::snapshot({0, 0}, false).segments) {
    const auto stream = std::ranges::find(handles_, number(real.stream));
    SegmentView segment{.address = static_cast<std::int64_t>(real.address),
                        .size = static_cast<std::int64_t>(real.total_size),
                        .stream = static_cast<int>(stream - handles_.begin()),
                        .is_large = real.is_large,
                        .is_expandable = real.is_expandable,
                        .blocks = {}};
    for (const auto& block : real.blocks) {
      segment.blocks.push_back({.size = static_cast<std::int64_t>(block.size),
                                .requested = block.active ? static_cast<std::int64_t>(block.requested_size) : 0,
                                .allocated = block.allocated,
                                .active = block.active});
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

// NOLINTEND(readability-convert-member-functions-to-static, readability-make-member-function-const)

}  // namespace vramfit::testing
