#include <algorithm>
#include <optional>
#include <vector>

#include "estimator/allocator/ledger_player.h"
#include "estimator/allocator/ledger_replay.h"
#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"

namespace vramfit {

namespace {

/// The running sums of a ledger, and their peaks. Without a replay every block is as large as its request.
class Folder {
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

  LedgerReplay* replay_;
  std::int64_t requested_ = 0, allocated_ = 0, reserved_ = 0;
  Breakdown live_;
  RankEstimate result_;
  PhasePeak* current_ = nullptr;
};

RankEstimate fold_over(const Ledger& ledger, LedgerReplay* replay) {
  Folder folder(replay);
  for (const Event& event : ledger.events) {
    if (!folder.add(event)) break;
  }
  return folder.finish();
}

/// None if the job does not even fit a card without a limit.
std::optional<RankEstimate> fold_repeats(const Ledger& ledger, const std::vector<RepeatedPart>& parts,
                                         LedgerReplay& replay) {
  Folder folder(&replay);
  const Playback played =
      LedgerPlayer(ledger, parts, replay).play([&](const Event& event) { return folder.add(event); });
  if (played.out_of_memory) return std::nullopt;
  RankEstimate rank = folder.finish();
  rank.reserved_grows = played.grows;
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
  }
}

}  // namespace

RankEstimate fold_on(const Ledger& ledger, const AllocatorSettings& settings, Driver& card) {
  LedgerReplay replay(settings, card);
  return fold_over(ledger, &replay);
}

RankEstimate fold(const Ledger& ledger, const Job& job, const Device& device) {
  if (device.kind != DeviceKind::cuda) return fold_over(ledger, nullptr);
  AllocatorSettings settings = allocator_settings(job.allocator);
  settings.memory_fraction = 1;  // a limit, which the replay on the card as it is looks at
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  std::optional<RankEstimate> band;
  for (const Placement placement : placements_of(settings, ledger.events.size())) {
    CardMemory card(placement);
    LedgerReplay replay(settings, card);
    const std::optional<RankEstimate> rank = fold_repeats(ledger, parts, replay);
    if (!rank) return fold_over(ledger, nullptr);
    if (band) {
      take_higher(*band, *rank);
    } else {
      band = rank;
    }
    if (!replay.placement_mattered() || rank->reserved_grows) break;
  }
  return *band;
}

}  // namespace vramfit
