#include "estimator/allocator/ledger_replay.h"

#include <algorithm>

namespace vramfit {

namespace {
constexpr std::uint64_t kShuffles = 16;
}

bool LedgerReplay::add(const Event& event) {
  const auto id = static_cast<std::size_t>(event.id);
  if (event.bytes < 0) {
    allocator_.free(blocks_[id]);
    return true;
  }
  if (blocks_.size() <= id) blocks_.resize(std::max(id + 1, 2 * blocks_.size()), CachingAllocator::kOutOfMemory);
  blocks_[id] = allocator_.malloc(event.bytes, static_cast<int>(event.stream));
  return blocks_[id] != CachingAllocator::kOutOfMemory;
}

std::vector<Placement> placements_of(const AllocatorSettings& settings) {
  std::vector<Placement> placements{{AddressOrder::ascending, 0}};
  if (settings.expandable_segments) return placements;
  placements.push_back({AddressOrder::descending, 0});
  for (std::uint64_t seed = 1; seed <= kShuffles; ++seed) placements.push_back({AddressOrder::shuffled, seed});
  return placements;
}

CapacityReplay replay_at_capacity(const Ledger& ledger, const AllocatorSettings& settings, Bytes total,
                                  Bytes free_bytes) {
  CapacityReplay worst;
  for (const Placement placement : placements_of(settings)) {
    CardMemory card(total, free_bytes, placement);
    LedgerReplay replay(settings, card);
    const bool fits = std::ranges::all_of(ledger.events, [&](const Event& event) { return replay.add(event); });
    worst.retries = std::max(worst.retries, replay.stats().alloc_retries);
    worst.out_of_memory = worst.out_of_memory || !fits;
    if (!replay.placement_mattered()) break;
  }
  return worst;
}

}  // namespace vramfit
