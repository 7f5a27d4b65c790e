#include "estimator/allocator/ledger_replay.h"

#include <algorithm>
#include <tuple>

#include "estimator/allocator/ledger_player.h"

namespace vramfit {

namespace {
constexpr std::uint64_t kShuffles = 16, kFewestShuffles = 2;
// Over all placements: 18 of the 32,000 events of the deepest published model (126 layers, units by layer).
constexpr std::uint64_t kMostEvents = 600'000;
}  // namespace

void LedgerReplay::swap(std::int64_t found, std::int64_t made) {
  int& block_found = blocks_[static_cast<std::size_t>(found)];
  int& block_made = blocks_[static_cast<std::size_t>(made)];
  if (only_small_ && block_found != CachingAllocator::kOutOfMemory) return;
  for (const auto& [block, id, other] : {std::tuple(block_found, found, made), std::tuple(block_made, made, found)}) {
    if (block != CachingAllocator::kOutOfMemory) traces_of(block) += trace_of(block, other) - trace_of(block, id);
  }
  std::swap(block_found, block_made);
}

/// Addresses of expandable segments count only by what lies beside them, so that their blocks are all looked at.
ReplayState LedgerReplay::state() const {
  if (allocator_.has_ranges()) {
    std::vector<std::int64_t> owners;
    for (std::size_t id = 0; id < blocks_.size(); ++id) {
      if (blocks_[id] == CachingAllocator::kOutOfMemory) continue;
      const auto block = static_cast<std::size_t>(blocks_[id]);
      if (owners.size() <= block) owners.resize(2 * block + 1);
      owners[block] = static_cast<std::int64_t>(id);
    }
    return {.large = allocator_.state(owners), .small = 0};
  }
  const auto& [large, small] = allocator_.segments_state();
  return {.large = traces_.large + large + allocator_.outer_state(), .small = traces_.small + small};
}

void LedgerReplay::repeat_up_to(const LedgerReplay& end, const AllocatorStats& then) {
  allocator_.repeat_up_to(end.allocator_, then);
  blocks_ = end.blocks_;
  traces_ = end.traces_;
}

std::vector<Placement> placements_of(const AllocatorSettings& settings, std::size_t events) {
  std::vector<Placement> placements{{AddressOrder::ascending, 0}};
  if (settings.expandable_segments) return placements;
  placements.push_back({AddressOrder::descending, 0});
  const std::uint64_t affordable = kMostEvents / std::max<std::uint64_t>(events, 1);
  const std::uint64_t shuffles = std::clamp(affordable, 2 + kFewestShuffles, 2 + kShuffles) - 2;
  for (std::uint64_t seed = 1; seed <= shuffles; ++seed) placements.push_back({AddressOrder::shuffled, seed});
  return placements;
}

CapacityReplay replay_at_capacity(const Ledger& ledger, const AllocatorSettings& settings, Bytes total,
                                  Bytes free_bytes) {
  CapacityReplay worst;
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  PlayedOrders orders;
  OrdersSeen seen;
  for (const Placement placement : placements_of(settings, ledger.events.size())) {
    if (seen.wanted() == 0 || is_played_enough(placement, orders.events)) break;
    CardMemory card(total, free_bytes, placement);
    LedgerReplay replay(settings, card);
    const Playback played =
        LedgerPlayer(ledger, parts, replay, orders).play([&](const Event& event) { return replay.add(event); });
    worst.retries = std::max(worst.retries, played.retries);
    worst.later_retries = std::max(worst.later_retries, played.later_retries);
    worst.out_of_memory = worst.out_of_memory || played.out_of_memory;
    if (worst.out_of_memory || !replay.placement_mattered()) break;
    seen.add(replay.stats(), played.retries, played.later_retries);
  }
  return worst;
}

bool fits_without_retries(const Ledger& ledger, const AllocatorSettings& settings, Bytes total, Bytes free_bytes) {
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  PlayedOrders orders;
  OrdersSeen seen;
  for (const Placement placement : placements_of(settings, ledger.events.size())) {
    if (seen.wanted() == 0 || is_played_enough(placement, orders.events)) break;
    CardMemory card(total, free_bytes, placement);
    LedgerReplay replay(settings, card);
    const auto add = [&](const Event& event) { return replay.add(event) && replay.stats().alloc_retries == 0; };
    if (LedgerPlayer(ledger, parts, replay, orders).play(add).out_of_memory) return false;
    if (!replay.placement_mattered()) return true;
    seen.add(replay.stats());
  }
  return true;
}

}  // namespace vramfit
