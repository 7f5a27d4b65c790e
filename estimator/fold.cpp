#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "base/process/in_parallel.h"
#include "estimator/allocator/compact_ledger.h"
#include "estimator/allocator/ledger_player.h"
#include "estimator/allocator/ledger_replay.h"
#include "estimator/allocator/unlimited_replay.h"
#include "estimator/estimate.h"
#include "estimator/peak_sums.h"
#include "estimator/rank_estimate.h"
#include "estimator/run_player.h"

namespace vramfit {

namespace {

/// An event, through the replay and into the sums. False: the card is full.
bool add_to(PeakSums& sums, LedgerReplay& replay, const Event& event) {
  sums.begin(event);
  sums.requested_with(event);
  if (!replay.add(event)) return false;
  sums.end(event, {replay.stats().allocated.current, replay.stats().reserved.current});
  return true;
}

/// Without a replay every block is as large as its request.
RankEstimate sums_of(const Ledger& ledger) {
  PeakSums sums;
  for (const Event& event : ledger.events) {
    sums.begin(event);
    const std::int64_t requested = sums.requested_with(event);
    sums.end(event, {requested, requested});
  }
  return sums.finish();
}

/// Of a job that not even a card without a limit holds: its requests alone.
std::optional<RankEstimate> sum_below(const Ledger& ledger, Bytes below) {
  RankEstimate rank = sums_of(ledger);
  if (rank.peak_reserved >= below) return std::nullopt;
  return rank;
}

/// The higher figures of two placements; the breakdown is that of the higher peak.
void take_higher(RankEstimate& band, const RankEstimate& rank) {
  band.least_reserved = std::min(band.least_reserved, rank.least_reserved);
  band.peak_reserved = std::max(band.peak_reserved, rank.peak_reserved);
  if (rank.peak_allocated > band.peak_allocated) {
    band.peak_allocated = rank.peak_allocated;
    band.breakdown = rank.breakdown;
  }
  band.reserved_grows = band.reserved_grows || rank.reserved_grows;
  band.breakdown.fragmentation = band.peak_reserved - band.peak_allocated;
  for (std::size_t i = 0; i < band.phases.size(); ++i) {
    band.phases[i].allocated = std::max(band.phases[i].allocated, rank.phases[i].allocated);
    band.phases[i].reserved = std::max(band.phases[i].reserved, rank.phases[i].reserved);
    PhasePeak::Sizes& most = band.phases[i].entered;
    const PhasePeak::Sizes& own = rank.phases[i].entered;
    most.allocated = std::max(most.allocated, own.allocated);
    most.reserved = std::max(most.reserved, own.reserved);
  }
}

/// What one order of addresses gives.
struct Order {
  std::optional<RankEstimate> rank;  // none: the card is full, or as much is reserved as nobody asks about
  bool is_over = false;              // the latter
  bool mattered = false;             // another order may give something else
  std::size_t events = 0;            // played
  AllocatorStats stats = {};         // at the end
  /// Whether the orders after it change nothing any more.
  bool is_last() const { return !rank || !mattered || rank->reserved_grows; }
};

enum class Detail { totals, all };  // peaks over everything alone, or those of each phase and the breakdown as well

RankEstimate totals_of(const AllocatorStats& stats) {
  RankEstimate rank;
  rank.peak_requested = Bytes{stats.requested.peak};
  rank.peak_allocated = Bytes{stats.allocated.peak};
  rank.peak_reserved = rank.least_reserved = Bytes{stats.reserved.peak};
  rank.breakdown.fragmentation = rank.peak_reserved - rank.peak_allocated;
  return rank;
}

Order order_of(const Playback& played, const AllocatorStats& stats, bool mattered, PeakSums* sums, Bytes below) {
  if (stats.reserved.peak >= below.n) return {.rank = std::nullopt, .is_over = true};
  if (played.out_of_memory) return {};
  Order order{.rank = sums != nullptr ? sums->finish() : totals_of(stats)};
  order.rank->reserved_grows = played.grows;
  order.mattered = mattered;
  order.stats = stats;
  return order;
}

/// Through a ledger's events.
Order play(LedgerPlayer<LedgerReplay>& player, LedgerReplay& replay, PeakSums* sums, Bytes below) {
  const auto in_detail = [&](const Event& event) { return add_to(*sums, replay, event); };
  const auto in_short = [&](const Event& event) {
    return replay.add(event) && replay.stats().reserved.current < below.n;
  };
  const Playback played = sums != nullptr ? player.play(in_detail) : player.play(in_short);
  return order_of(played, replay.stats(), replay.placement_mattered(), sums, below);
}

/// From this many on, orders are played beside each other: five milliseconds or more.
constexpr std::size_t kManyEvents = 100'000;

/// The band of a ledger over all orders of addresses.
class Band {
 public:
  Band(const Ledger& ledger, const Job& job, Bytes below, Detail detail)
      : ledger_(ledger),
        parts_(repeated_parts(ledger)),
        settings_(allocator_settings(job.allocator)),
        below_(below),
        detail_(detail) {
    settings_.memory_fraction = 1;  // a limit, which the replay on the card as it is looks at
    compact_ = compacted(ledger, parts_, settings_);
    placements_ = placements_of(settings_, ledger.events.size());
    orders_.resize(placements_.size());
  }

  std::optional<RankEstimate> find() {
    std::optional<RankEstimate> band;
    std::size_t played_events = 0;
    OrdersSeen seen;
    for (std::size_t number = 0; number < orders_.size(); ++number) {
      if (seen.wanted() == 0 || is_played_enough(placements_[number], played_events)) break;
      if (number > 0 && !orders_[number]) play_ahead(number, number + seen.wanted(), played_events / number);
      if (!orders_[number]) orders_[number] = play_order(number);
      const Order& order = *orders_[number];
      played_events += order.events;
      if (order.is_over) return std::nullopt;
      if (!order.rank) return sum_below(ledger_, below_);
      if (band) {
        take_higher(*band, *order.rank);
      } else {
        band = order.rank;
      }
      if (order.is_last()) break;
      seen.add(order.stats);
    }
    return band;
  }

 private:
  /// The orders from `begin` to `end`, beside each other where they are long: each is played for itself and has some
  /// `events`. What follows one that is the last is left out.
  void play_ahead(std::size_t begin, std::size_t end, std::size_t events) {
    end = std::min(end, orders_.size());
    while (end > begin && is_played_enough(placements_[end - 1], (end - 1) * events)) --end;
    if (end <= begin + 1 || (end - begin) * events < kManyEvents) return;
    std::atomic<std::size_t> last = end;
    in_parallel(end - begin, [&](std::size_t part) {
      const std::size_t number = begin + part;
      if (number > last) return;
      orders_[number] = play_order(number);
      if (orders_[number]->is_last()) last = number;
    });
  }

  Order play_order(std::size_t number) const {
    CardMemory card(placements_[number]);
    PeakSums all;
    PeakSums* const sums = detail_ == Detail::all ? &all : nullptr;
    PlayedOrders alone;
    Order order;
    if (compact_) {
      UnlimitedReplay replay(*compact_, settings_, card, below_);
      const Playback played = RunPlayer(ledger_, *compact_, replay, sums).play(parts_, alone);
      order = order_of(played, replay.stats(), replay.placement_mattered(), sums, below_);
    } else {
      LedgerReplay replay(settings_, card);
      LedgerPlayer player(ledger_, parts_, replay, alone, sums);
      order = play(player, replay, sums, below_);
    }
    order.events = alone.events;
    return order;
  }

  const Ledger& ledger_;
  const std::vector<RepeatedPart> parts_;
  AllocatorSettings settings_;
  std::optional<CompactLedger> compact_;
  std::vector<Placement> placements_;
  Bytes below_;
  Detail detail_;
  std::vector<std::optional<Order>> orders_;  // by placement: those that have been played
};

std::optional<RankEstimate> band_below(const Ledger& ledger, const Job& job, Bytes below, Detail detail) {
  return Band(ledger, job, below, detail).find();
}

}  // namespace

RankEstimate fold_on(const Ledger& ledger, const AllocatorSettings& settings, Driver& card) {
  LedgerReplay replay(settings, card);
  PeakSums sums;
  for (const Event& event : ledger.events) {
    if (!add_to(sums, replay, event)) break;
  }
  return sums.finish();
}

RankEstimate fold(const Ledger& ledger, const Job& job, const Device& device) {
  if (device.kind != DeviceKind::cuda) return sums_of(ledger);
  return *band_below(ledger, job, kNoLimit, Detail::all);
}

Bytes arena_granule(const Device& device) {
  return device.kind == DeviceKind::cuda ? arena::kDeviceGranule : arena::kCpuGranule;
}

RankEstimate fold_in_arena(const Ledger& ledger, const arena::Script& arena, const Device& device) {
  Job rounded;  // expandable segments hold just what lives, each block rounded up to 512 bytes
  rounded.allocator = "expandable";
  RankEstimate rank = fold(ledger, rounded, device);
  Bytes reserved = arena.size;
  if (device.kind == DeviceKind::cuda && arena.size.n > 0) {
    CardMemory card(Placement{AddressOrder::ascending, 0});
    CachingAllocator allocator(allocator_settings("arena"), card);
    allocator.malloc(arena.size.n, static_cast<int>(Stream::compute));
    reserved = Bytes{allocator.stats().reserved.peak};
  }
  rank.peak_reserved = rank.least_reserved = reserved;
  rank.reserved_grows = false;
  for (PhasePeak& phase : rank.phases) phase.reserved = phase.entered.reserved = reserved;
  rank.breakdown.fragmentation = reserved - rank.peak_allocated;
  return rank;
}

void add_clip_phase(RankEstimate& rank) {
  if (std::ranges::find(rank.phases, Phase::clip, &PhasePeak::phase) != rank.phases.end()) return;
  for (std::size_t i = 0; i < rank.phases.size(); ++i) {
    if (rank.phases[i].phase != Phase::optimizer) continue;
    PhasePeak clip = rank.phases[i];
    clip.phase = Phase::clip;
    clip.requested = clip.entered.requested;
    clip.allocated = clip.entered.allocated;
    clip.reserved = std::min(clip.reserved, clip.entered.reserved);  // growth may end at the card's capacity
    rank.phases.insert(rank.phases.begin() + static_cast<std::ptrdiff_t>(i), clip);
    ++i;
  }
}

std::optional<RankEstimate> fold_below(const Ledger& ledger, const Job& job, Bytes below) {
  return band_below(ledger, job, below, Detail::totals);
}

}  // namespace vramfit
