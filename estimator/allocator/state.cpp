// A fingerprint of all that decides what the allocator does next, and what follows from two being equal.
#include <algorithm>

#include "base/numbers/mix_bits.h"
#include "estimator/allocator/caching_allocator.h"

namespace vramfit {

namespace {
constexpr unsigned kAboveSize = 48;  // bits
// Odd, with bits of no pattern: what a block is becomes one word, which is then mixed.
constexpr std::uint64_t kOfPlace = 0x9E3779B97F4A7C15, kOfSize = 0xC2B2AE3D27D4EB4F, kOfOwner = 0xD6E8FEB86659FD93;
}  // namespace

/// Ranges of expandable segments are numbered anew: a range that was given back and reserved again lies elsewhere, and
/// of their addresses only the order matters.
std::vector<std::uint64_t> CachingAllocator::range_numbers() const {
  if (ranges_.empty()) return {};
  std::vector<std::uint64_t> numbers(ranges_.size(), 0);
  for (const Block& b : blocks_) {
    if (b.size > 0 && b.range >= 0) numbers[static_cast<std::size_t>(b.range)] = 1;
  }
  std::uint64_t next = 1;
  for (std::uint64_t& number : numbers) {
    if (number != 0) number = next++;
  }
  return numbers;
}

/// Its address; in an expandable segment, the segment's number and the distance from its beginning.
inline std::uint64_t CachingAllocator::place_of(const Block& block, const std::vector<std::uint64_t>& numbers) const {
  const auto address = static_cast<std::uint64_t>(block.address);
  if (block.range < 0) return address;
  const auto range = static_cast<std::size_t>(block.range);
  return (address - static_cast<std::uint64_t>(ranges_[range].address)) ^ numbers[range] << kAboveSize;
}

void CachingAllocator::note_segment(const Block& block, bool is_new) {
  const std::uint64_t own =
      mix_bits(static_cast<std::uint64_t>(block.address) * kOfPlace +
               (static_cast<std::uint64_t>(block.size) | std::uint64_t{block.stream} << kAboveSize) * kOfSize);
  segments_state_[block.is_small ? 1 : 0] += is_new ? own : 0 - own;
}

std::uint64_t CachingAllocator::outer_state() const {
  return driver_->state() + (collects_garbage() ? mix_bits(static_cast<std::uint64_t>(stats_.device_allocs)) : 0);
}

/// A sum over blocks, so their numbers, which are names, don't count.
std::uint64_t CachingAllocator::state(std::span<const std::int64_t> owners) const {
  const std::vector<std::uint64_t> numbers = range_numbers();
  std::uint64_t sum = outer_state();
  for (std::size_t number = 0; number < blocks_.size(); ++number) {
    const Block& b = blocks_[number];
    if (b.size == 0) continue;
    const std::uint64_t owner =
        b.is_allocated && number < owners.size() ? static_cast<std::uint64_t>(owners[number]) : 0;
    const std::uint64_t flags = (b.is_allocated ? 1U : 0U) | (b.is_mapped ? 2U : 0U) | (b.is_small ? 4U : 0U) |
                                (b.previous >= 0 ? 8U : 0U) | (b.next >= 0 ? 16U : 0U) | (b.events > 0 ? 32U : 0U) |
                                (b.other_streams != 0 ? 64U : 0U) | static_cast<unsigned>(b.stream) << 8U;
    // Sizes have less than 48 bits, so that a word holds one and something else.
    std::uint64_t mixed = place_of(b, numbers) * kOfPlace +
                          (static_cast<std::uint64_t>(b.size) | flags << kAboveSize) * kOfSize + owner * kOfOwner;
    if (b.other_streams != 0) mixed = mix_bits(mixed) + b.other_streams;
    sum += mix_bits(mixed);
  }
  return sum;
}

void CachingAllocator::repeat_up_to(const CachingAllocator& end, const AllocatorStats& then) {
  const AllocatorStats now = stats_;
  const bool mattered = placement_mattered_;
  *this = end;
  placement_mattered_ = placement_mattered_ || mattered;
  for (PeakedSum AllocatorStats::*const sum :
       {&AllocatorStats::requested, &AllocatorStats::allocated, &AllocatorStats::active, &AllocatorStats::reserved}) {
    (stats_.*sum).peak = std::max((stats_.*sum).peak, (now.*sum).peak);
  }
  for (std::int64_t AllocatorStats::*const count :
       {&AllocatorStats::alloc_retries, &AllocatorStats::ooms, &AllocatorStats::device_allocs,
        &AllocatorStats::device_frees, &AllocatorStats::sync_all_streams}) {
    stats_.*count += now.*count - then.*count;
  }
}

}  // namespace vramfit
