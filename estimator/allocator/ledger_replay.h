// A ledger's events through the replay of the caching allocator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "estimator/allocator/caching_allocator.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// Maps the ledger's block ids to the allocator's blocks.
class LedgerReplay {
 public:
  /// `driver` outlives the replay.
  LedgerReplay(const AllocatorSettings& settings, Driver& driver) : allocator_(settings, driver) {}

  /// False: out of memory. The block was then not allocated, and freeing it does nothing.
  bool add(const Event& event);
  /// Swaps the blocks of two ids: before the next pass of a repeat, what the last pass left takes the place of what it
  /// found.
  void swap(std::int64_t a, std::int64_t b);
  /// A fingerprint of the allocator and of the ids its blocks belong to: from equal states, the same events have the
  /// same effect.
  std::uint64_t state() const;
  /// As CachingAllocator::repeat_up_to.
  void repeat_up_to(const LedgerReplay& end, const AllocatorStats& then);
  const AllocatorStats& stats() const { return allocator_.stats(); }
  bool placement_mattered() const { return allocator_.placement_mattered(); }

 private:
  void set_owner(int block, std::int64_t id) {
    const auto number = static_cast<std::size_t>(block);
    if (owners_.size() <= number) owners_.resize(2 * number + 1);
    owners_[number] = id;
  }

  CachingAllocator allocator_;
  std::vector<int> blocks_;           // by id; kOutOfMemory: none
  std::vector<std::int64_t> owners_;  // by block: its id, while it is allocated
};

inline bool LedgerReplay::add(const Event& event) {
  if (event.bytes == 0) {
    allocator_.empty_cache();
    return true;
  }
  const auto id = static_cast<std::size_t>(event.id);
  if (event.bytes < 0) {
    const int block = std::exchange(blocks_[id], CachingAllocator::kOutOfMemory);
    if (block != CachingAllocator::kOutOfMemory) allocator_.free(block);
    return true;
  }
  if (blocks_.size() <= id) blocks_.resize(std::max(id + 1, 2 * blocks_.size()), CachingAllocator::kOutOfMemory);
  const int block = blocks_[id] = allocator_.malloc(event.bytes, static_cast<int>(event.stream));
  if (block == CachingAllocator::kOutOfMemory) return false;
  set_owner(block, event.id);
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
