#include <algorithm>
#include <atomic>
#include <optional>
#include <vector>

#include "base/process/in_parallel.h"
#include "estimator/allocator/ledger_player.h"
#include "estimator/allocator/ledger_replay.h"
#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"

namespace vramfit {

namespace {

/// The running sums of a ledger, and their peaks. Without a replay every block is as large as its request.
class Folder final : public RunningSums {
 public:
  explicit Folder(LedgerReplay* replay) : replay_(replay) {}

  /// False: the card is full.
  bool add(const Event& event) {
    enter_phase(event);
    live_.categories[static_cast<std::size_t>(event.category)].n += event.bytes;
    requested_ = checked_add(requested_, event.bytes);
    if (replay_ != nullptr) {
      if (!replay_->add(event)) return false;
      allocated_ = replay_->stats().allocated.current;
      reserved_ = replay_->stats().reserved.current;
    } else {
      allocated_ = reserved_ = requested_;
    }
    if (event.bytes > 0) record();
    return true;
  }

  void keep(std::size_t part) override {
    kept_.resize(std::max(kept_.size(), part + 1));
    kept_[part] = {requested_, live_};
  }

  void go_back(std::size_t part) override {
    requested_ = kept_[part].requested;
    live_ = kept_[part].live;
    allocated_ = replay_->stats().allocated.current;
    reserved_ = replay_->stats().reserved.current;
    current_ = nullptr;
  }

  RankEstimate finish() {
    result_.breakdown.fragmentation = result_.peak_reserved - result_.peak_allocated;
    result_.least_reserved = result_.peak_reserved;
    return std::move(result_);
  }

 private:
  /// A phase's peak starts at what is live when it is entered.
  void enter_phase(const Event& event) {
    const bool steady = event.step >= 2;
    if (current_ != nullptr && current_->phase == event.phase && current_->steady == steady) return;
    const auto known = std::ranges::find_if(
        result_.phases, [&](const PhasePeak& p) { return p.phase == event.phase && p.steady == steady; });
    if (known == result_.phases.end()) {
      result_.phases.push_back(
          {.phase = event.phase, .steady = steady, .requested = {}, .allocated = {}, .reserved = {}});
      current_ = &result_.phases.back();
    } else {
      current_ = &*known;
    }
    raise(current_->entered.requested, requested_);
    raise(current_->entered.allocated, allocated_);
    raise(current_->entered.reserved, reserved_);
    record_phase();
  }

  static void raise(Bytes& peak, std::int64_t now) { peak.n = std::max(peak.n, now); }

  void record_phase() {
    raise(current_->requested, requested_);
    raise(current_->allocated, allocated_);
    raise(current_->reserved, reserved_);
  }

  void record() {
    record_phase();
    raise(result_.peak_requested, requested_);
    raise(result_.peak_reserved, reserved_);
    if (allocated_ <= result_.peak_allocated.n) return;
    result_.peak_allocated.n = allocated_;
    result_.breakdown = live_;
    result_.breakdown.rounding.n = allocated_ - requested_;
  }

  struct Sums {
    std::int64_t requested = 0;
    Breakdown live;
  };

  LedgerReplay* replay_;
  std::int64_t requested_ = 0, allocated_ = 0, reserved_ = 0;
  Breakdown live_;
  RankEstimate result_;
  PhasePeak* current_ = nullptr;
  std::vector<Sums> kept_;  // by part
};

RankEstimate fold_over(const Ledger& ledger, LedgerReplay* replay) {
  Folder folder(replay);
  for (const Event& event : ledger.events) {
    if (!folder.add(event)) break;
  }
  return folder.finish();
}

/// Of a job that not even a card without a limit holds: its requests alone.
std::optional<RankEstimate> sum_below(const Ledger& ledger, Bytes below) {
  RankEstimate rank = fold_over(ledger, nullptr);
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

/// Without a limit, what is reserved never becomes less.
Order play(LedgerPlayer& player, LedgerReplay& replay, Folder* folder, Bytes below) {
  const auto in_detail = [&](const Event& event) { return folder->add(event); };
  const auto in_short = [&](const Event& event) {
    return replay.add(event) && replay.stats().reserved.current < below.n;
  };
  const Playback played = folder != nullptr ? player.play(in_detail) : player.play(in_short);
  if (replay.stats().reserved.peak >= below.n) return {.rank = std::nullopt, .is_over = true};
  if (played.out_of_memory) return {};
  Order order{.rank = folder != nullptr ? folder->finish() : totals_of(replay.stats())};
  order.rank->reserved_grows = played.grows;
  order.mattered = replay.placement_mattered();
  order.stats = replay.stats();
  return order;
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
    LedgerReplay replay(settings_, card);
    Folder folder(&replay);
    Folder* const sums = detail_ == Detail::all ? &folder : nullptr;
    PlayedOrders alone;
    LedgerPlayer player(ledger_, parts_, replay, alone, sums);
    Order order = play(player, replay, sums, below_);
    order.events = alone.events;
    return order;
  }

  const Ledger& ledger_;
  const std::vector<RepeatedPart> parts_;
  AllocatorSettings settings_;
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
  return fold_over(ledger, &replay);
}

RankEstimate fold(const Ledger& ledger, const Job& job, const Device& device) {
  if (device.kind != DeviceKind::cuda) return fold_over(ledger, nullptr);
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
