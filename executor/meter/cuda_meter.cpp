#include "executor/meter/cuda_meter.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/text/suggest.h"
#include "executor/meter/cuda_arena.h"
#include "executor/meter/meter.h"
#include "executor/meter/registered_memory.h"
#include "job/allocator/allocator_environment.h"
#include "job/allocator/allocator_settings.h"

// Compilers may inline the base class's own getMemoryInfo on suspicion (executor/meter/cuda_arena.cpp).
#pragma weak cudaMemGetInfo

namespace vramfit {

namespace {

using StatType = c10::CachingAllocator::StatType;

const c10::CachingAllocator::Stat& total_of(const c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<std::size_t>(StatType::AGGREGATE)];
}

/// With an arena, what lives in it counts as allocated, not its block. If something is beside it, that is the sum of
/// two peaks that may have been at different moments.
DevicePeaks take_peaks() {
  const c10::DeviceIndex device = c10::cuda::current_device();
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  c10::cuda::CUDACachingAllocator::resetPeakStats(device);
  DevicePeaks peaks{.allocated = Bytes{total_of(stats.allocated_bytes).peak},
                    .reserved = Bytes{total_of(stats.reserved_bytes).peak}};
  if (const auto arena = cuda_arena()) peaks.allocated += arena->take_peak() - cuda_arena_block();
  return peaks;
}

/// What a history keeps of the allocator's trace besides blocks handed out and taken back.
std::optional<MemoryAction> other_action(c10::CachingDeviceAllocator::TraceEntry::Action action) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  switch (action) {
    case Entry::FREE_REQUESTED:
      return MemoryAction::free_requested;
    case Entry::SEGMENT_ALLOC:
      return MemoryAction::segment_alloc;
    case Entry::SEGMENT_FREE:
      return MemoryAction::segment_free;
    case Entry::SEGMENT_MAP:
      return MemoryAction::segment_map;
    case Entry::SEGMENT_UNMAP:
      return MemoryAction::segment_unmap;
    case Entry::OOM:
      return MemoryAction::oom;
    case Entry::ALLOC:
    case Entry::FREE_COMPLETED:
    case Entry::SNAPSHOT:
      return std::nullopt;
  }
  return std::nullopt;
}

/// What the card shows as used beyond what the allocator holds. Other processes on the card count too.
Bytes outside_allocator(Bytes reserved) {
  const auto [free, total] = c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(c10::cuda::current_device());
  const Bytes used{static_cast<std::int64_t>(total - free)};
  return std::max(Bytes{0}, used - reserved);
}

std::string settings_of(const std::string& allocator) {
  if (allocator == "native" || is_arena(allocator)) return "expandable_segments:False";
  if (names_expandable_segments(allocator)) return "expandable_segments:True";
  std::string settings = allocator;  // KEY=VALUE,...
  for (char& c : settings) c = c == '=' ? ':' : c;
  return settings;
}

void refuse_other_settings(const std::string& allocator) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing sets the environment here
    if (value == nullptr || asks_for_allocator(value, allocator)) continue;
    throw InputError(fmt::format("{}={} contradicts --allocator {}; unset it", name, printable(value, 80), allocator));
  }
}

}  // namespace

bool has_cuda() { return c10::cuda::device_count() > 0; }

Device open_cuda_device(int local_rank, const std::string& allocator) {
  if (!has_cuda()) {
    throw FaultError("--device cuda: this machine has no usable NVIDIA GPU (no device or no driver); use --device cpu");
  }
  if (local_rank >= c10::cuda::device_count()) {
    throw FaultError(fmt::format("--device cuda: local rank {} has no GPU of its own ({} here)", local_rank,
                                 c10::cuda::device_count()));
  }
  const std::string settings = settings_of(allocator);
  refuse_other_settings(allocator);
  c10::cuda::CUDACachingAllocator::setAllocatorSettings(settings);
  // The allocator of each device exists from here on; before, there is nothing that a tracker could be attached to.
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(local_rank));
  const cudaDeviceProp& properties = *at::cuda::getCurrentDeviceProperties();
  Device device;
  device.kind = DeviceKind::cuda;
  device.name = properties.name;
  device.compute_capability = 10 * properties.major + properties.minor;
  device.sm_count = properties.multiProcessorCount;
  return device;
}

void make_cublas_handle(bool uses_cublaslt) {
  {
    const LabelScope scope(Category::workspace, "cublas workspace");
    at::cuda::getCurrentCUDABlasHandle();
  }
  if (!uses_cublaslt) return;
  const LabelScope scope(Category::workspace, "cublasLt workspace");
  at::cuda::getCUDABlasLtWorkspace();
}

DeviceMemory device_memory() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  const auto arena = cuda_arena();
  const Bytes beside_tensors = arena ? cuda_arena_block() - arena->live() : Bytes{0};
  return {.allocated = Bytes{total_of(stats.allocated_bytes).current} - beside_tensors,
          .reserved = Bytes{total_of(stats.reserved_bytes).current},
          .retries = stats.num_alloc_retries};
}

Bytes pinned_host_memory() {
  return Bytes{at::getHostAllocator(at::kCUDA)->get_stats().allocated_bytes.peak} + registered_host_memory();
}

void add_cuda_peaks(RankEstimate& rank) {
  rank.peak_allocated = rank.peak_reserved = {};
  for (const PhasePeak& phase : rank.phases) {
    rank.peak_allocated = std::max(rank.peak_allocated, phase.allocated);
    rank.peak_reserved = std::max(rank.peak_reserved, phase.reserved);
  }
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  rank.alloc_retries = stats.num_alloc_retries;
  rank.breakdown.outside_allocator = outside_allocator(Bytes{total_of(stats.reserved_bytes).current});
  rank.breakdown.rounding = rank.peak_allocated - rank.peak_requested;
  rank.breakdown.fragmentation = rank.peak_reserved - rank.peak_allocated;
}

void Meter::install_cuda() {
  take_device_peaks(take_peaks);
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([this](const Entry& entry) {
    // An address only serves as the block's name here.
    const auto* block = reinterpret_cast<const void*>(entry.addr_);  // NOLINT(performance-no-int-to-ptr)
    const Bytes bytes{static_cast<std::int64_t>(entry.size_)};
    const auto stream = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(entry.stream_));
    if (entry.action_ == Entry::ALLOC) {
      if (is_opening_cuda_arena()) return;
      allocated(block, bytes, stream);
    } else if (entry.action_ == Entry::FREE_COMPLETED) {
      freed(block, stream);
    } else if (const auto action = other_action(entry.action_)) {
      noted(*action, entry.addr_, bytes, stream);
    }
  });
}

}  // namespace vramfit
