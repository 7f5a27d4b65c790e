// A ledger's events through the replay of a card without a limit, in runs.
#pragma once

#include <span>
#include <vector>

#include "estimator/allocator/compact_ledger.h"
#include "estimator/allocator/ledger_player.h"
#include "estimator/allocator/unlimited_replay.h"
#include "estimator/peak_sums.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// Plays a ledger and its repeats. What it is given outlives it.
class RunPlayer {
 public:
  /// `compact`: the ledger's form, by which `replay` plays it. `sums`: of it; null: nobody asks for them.
  RunPlayer(const Ledger& ledger, const CompactLedger& compact, UnlimitedReplay& replay, PeakSums* sums)
      : ledger_(ledger), compact_(compact), replay_(replay), sums_(sums) {}

  /// As LedgerPlayer, which says what `parts` and `orders` are.
  Playback play(const std::vector<RepeatedPart>& parts, PlayedOrders& orders);

 private:
  bool add(std::span<const Event> events);
  bool add(const CompactLedger::Run& run);
  void add_left(const Event& event);
  HeldBytes held() const;

  const Ledger& ledger_;
  const CompactLedger& compact_;
  UnlimitedReplay& replay_;
  PeakSums* sums_;
};

}  // namespace vramfit
