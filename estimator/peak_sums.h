// The peaks of a ledger: in each phase, and over everything with what is live then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/allocator/compact_ledger.h"
#include "estimator/allocator/ledger_player.h"
#include "estimator/allocator/unlimited_replay.h"
#include "estimator/rank_estimate.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// What an allocator holds, in bytes.
struct HeldBytes {
  std::int64_t allocated = 0, reserved = 0;
};

/// Adds up events, one by one or in runs, beside the replay that says what the allocator holds after them.
class PeakSums final : public RunningSums {
 public:
  /// Before the replay of an event: its phase begins, if it isn't that of the event before.
  void begin(const Event& event);
  /// After it: what is requested then.
  std::int64_t requested_with(const Event& event);
  /// And what is held.
  void end(const Event& event, HeldBytes held);
  /// After the replay of a run, which began with its first event. `most`: of the run.
  void end(const Ledger& ledger, const CompactLedger::Run& run, const UnlimitedReplay::Most& most, HeldBytes held);

  void keep(std::size_t part) override;
  void go_back(std::size_t part) override;

  /// Once: all that has been added up.
  RankEstimate finish();

 private:
  struct Sums {
    std::int64_t requested = 0;
    HeldBytes held;
    Breakdown live;
  };
  /// Where the highest peak is, if it is inside a run.
  struct InRun {
    const Ledger* ledger = nullptr;
    std::size_t begin = 0, position = 0;
    std::int64_t requested = 0;  // before the run
  };

  void record_phase();

  Sums now_;
  RankEstimate result_;
  InRun peak_;                    // result_.breakdown is then what lived before the run
  PhasePeak* current_ = nullptr;  // in result_.phases
  std::vector<Sums> kept_;        // by part
};

}  // namespace vramfit
