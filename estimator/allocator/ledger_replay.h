// A ledger's events through the replay of the caching allocator.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/ledger.h"

namespace vramfit {

/// Maps the ledger's block ids to the allocator's blocks.
class LedgerReplay {
 public:
  /// `driver` outlives the replay.
  LedgerReplay(const AllocatorSettings& settings, Driver& driver) : allocator_(settings, driver) {}

  /// False: out of memory. The block was then not allocated and must not be freed.
  bool add(const Event& event);
  const AllocatorStats& stats() const { return allocator_.stats(); }
  bool placement_mattered() const { return allocator_.placement_mattered(); }

 private:
  CachingAllocator allocator_;
  std::vector<int> blocks_;  // by id
};

/// The placements that a prediction is made over. Expandable segments don't depend on them: one is enough. Otherwise
/// best fit breaks ties by address, and the band is over ascending and descending addresses and 16 fixed shuffles.
std::vector<Placement> placements_of(const AllocatorSettings& settings);

struct CapacityReplay {
  std::int64_t retries = 0;  // how often the allocator released free memory and tried again
  bool out_of_memory = false;
};

/// The worst over all placements on a card with `total` memory, of which `free_bytes` are there for the allocator.
CapacityReplay replay_at_capacity(const Ledger& ledger, const AllocatorSettings& settings, Bytes total,
                                  Bytes free_bytes);

}  // namespace vramfit
