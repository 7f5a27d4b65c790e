// Which rehearsals a search makes, and which of them may run at the same time.
#pragma once

#include <optional>
#include <vector>

#include "cli/rehearse/search/search.h"

namespace vramfit {

/// What rehearses the points of a search.
class TrialPool {
 public:
  struct Ended {
    RehearsalTrial trial;
    bool was_alone = true;  // no other ran at any time while it did
  };

  TrialPool() = default;
  virtual ~TrialPool() = default;
  TrialPool(const TrialPool&) = delete;
  TrialPool& operator=(const TrialPool&) = delete;
  TrialPool(TrialPool&&) = delete;
  TrialPool& operator=(TrialPool&&) = delete;

  /// A result from an earlier search.
  virtual std::optional<RehearsalTrial> kept(const SearchPoint& point) = 0;
  /// Whether one more can run now; always true if none runs.
  virtual bool has_room() = 0;
  virtual void start(const SearchPoint& point) = 0;
  /// Ends one that was started. Its result is not wanted.
  virtual void cancel(const SearchPoint& point) = 0;
  /// Until one has ended; nothing if that one was cancelled.
  virtual std::optional<Ended> wait() = 0;
  /// None runs, not even one that was cancelled.
  virtual bool is_idle() = 0;
  /// It is part of the result.
  virtual void accept(const RehearsalTrial& trial) = 0;
};

/// Of a range, values are doubled until one does not fit, and halved from there, so that in the end the largest that
/// fits and the next one have both been tried. A failed trial ends its row, an interrupted one the search. Where the
/// pool has room for several, rows go on side by side, and values that may be needed next are tried beforehand. The
/// result is the one of a pool with room for one: trials that turn out not to be needed are no part of it, and one that
/// failed beside others is repeated alone.
SearchResult run_search(const std::vector<SearchAxis>& axes, TrialPool& pool);

}  // namespace vramfit
