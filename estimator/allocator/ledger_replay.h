// A ledger's events through the replay of the caching allocator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/numbers/mix_bits.h"
#include "estimator/allocator/caching_allocator.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// A fingerprint of what decides what happens next, in two parts: that of the large pools, and that of the small ones.
struct ReplayState {
  std::uint64_t large = 0, small = 0;
  bool operator==(const ReplayState&) const = default;
};

/// Maps the ledger's block ids to the allocator's blocks.
class LedgerReplay {
 public:
  /// `driver` outlives the replay.
  LedgerReplay(const AllocatorSettings& settings, Driver& driver) : allocator_(settings, driver) {}

  /// False: out of memory. The block was then not allocated, and freeing it does nothing.
  bool add(const Event& event);
  /// Swaps the blocks of two ids: before the next pass of a repeat, what the last pass made takes the place of what it
  /// found. What was left out is still where it was found.
  void swap(std::int64_t found, std::int64_t made);
  /// A fingerprint of the allocator and of the ids its blocks belong to: from equal states, the same events have the
  /// same effect. Expandable segments of both sizes are in the large part.
  ReplayState state() const;
  /// As CachingAllocator::repeat_up_to.
  void repeat_up_to(const LedgerReplay& end, const AllocatorStats& then);
  /// Leaves out what concerns large pools, or no longer. Only where pools are apart.
  void set_only_small(bool only_small) { only_small_ = only_small; }
  /// Whether the large pools and the small ones are no matter of each other's, apart from the order in which they ask
  /// for segments.
  bool pools_are_apart() const { return allocator_.is_unlimited() && !allocator_.has_ranges(); }
  /// Whether the id has a block, of a large pool.
  bool is_large(std::int64_t id) const {
    const int block = blocks_[static_cast<std::size_t>(id)];
    return block != CachingAllocator::kOutOfMemory && !allocator_.is_small(block);
  }
  const AllocatorStats& stats() const { return allocator_.stats(); }
  bool placement_mattered() const { return allocator_.placement_mattered(); }

 private:
  /// Of an allocated block and its owner.
  std::uint64_t trace_of(int block, std::int64_t id) const {
    // Odd, with bits of no pattern: what is to be told apart becomes one word, which is then mixed.
    constexpr std::uint64_t kOfPlace = 0x9E3779B97F4A7C15, kOfSize = 0xC2B2AE3D27D4EB4F;
    const auto address = static_cast<std::uint64_t>(allocator_.address(block));
    const auto size = static_cast<std::uint64_t>(allocator_.size(block));
    return mix_bits((address * kOfPlace + size) * kOfSize + static_cast<std::uint64_t>(id));
  }
  std::uint64_t& traces_of(int block) { return allocator_.is_small(block) ? traces_.small : traces_.large; }

  CachingAllocator allocator_;
  std::vector<int> blocks_;  // by id; kOutOfMemory: none
  ReplayState traces_;       // sums over the blocks that are allocated
  bool only_small_ = false;
};

inline bool LedgerReplay::add(const Event& event) {
  if (only_small_ && !allocator_.is_small_request(std::abs(event.bytes))) return true;
  const auto id = static_cast<std::size_t>(event.id);
  if (event.bytes > 0) {
    if (blocks_.size() <= id) blocks_.resize(std::max(id + 1, 2 * blocks_.size()), CachingAllocator::kOutOfMemory);
    const int block = blocks_[id] = allocator_.malloc(event.bytes, static_cast<int>(event.stream));
    if (block == CachingAllocator::kOutOfMemory) return false;
    traces_of(block) += trace_of(block, event.id);
  } else if (event.bytes < 0) {
    const int block = std::exchange(blocks_[id], CachingAllocator::kOutOfMemory);
    if (block == CachingAllocator::kOutOfMemory) return true;
    traces_of(block) -= trace_of(block, event.id);
    allocator_.free(block);
  } else {
    allocator_.empty_cache();
  }
  return true;
}

/// The placements that a prediction is made over. Expandable segments don't depend on them: one is enough. Otherwise
/// best fit breaks ties by address, and the band is over ascending and descending addresses and up to 16 fixed shuffles
/// (as few as 2 for a ledger of more than 33,000 events, which takes longer). OrdersSeen says when enough were played.
std::vector<Placement> placements_of(const AllocatorSettings& settings, std::size_t events = 0);

struct CapacityReplay {
  /// How often the allocator released free memory and tried again: in load and the first two steps, and in the worst
  /// later step.
  std::int64_t retries = 0, later_retries = 0;
  bool out_of_memory = false;
};

/// The worst over all placements on a card with `total` memory, of which `free_bytes` are there for the allocator.
/// Repeats are played until the allocator's state repeats (LedgerPlayer).
CapacityReplay replay_at_capacity(const Ledger& ledger, const AllocatorSettings& settings, Bytes total,
                                  Bytes free_bytes);

/// Whether that is neither out of memory nor retries; ends at the first of either.
bool fits_without_retries(const Ledger& ledger, const AllocatorSettings& settings, Bytes total, Bytes free_bytes);

}  // namespace vramfit
