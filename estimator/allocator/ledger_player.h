// Plays a ledger: its events in order, and what stands for many passes for as many as make a difference. What a job
// asks for is the same in every step; what the allocator makes of it is the same only once the allocator's state is.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "estimator/allocator/ledger_replay.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// A repeat, and how one pass follows from another.
struct RepeatedPart {
  Repeat events;
  std::size_t next = 0;  // the first part after this one and those inside it
  /// Found by a pass and freed in it; made in it in its stead, and there when it ends.
  std::vector<std::pair<std::int64_t, std::int64_t>> carried;
  std::vector<Event> left;  // frees of what a step leaves behind for good (a loss kept for a log): once, not each step
  bool empties_cache = false;
  bool is_closed = true;  // false: a second pass would free what the first did, so there is none
  /// Where in the events a pass is compared with the one before it: from equal states on, both are the same.
  std::vector<std::size_t> stops;
};

/// The ledger's repeats, in its order. Without labels it is one of requests_of(): what a pass leaves has the ids of
/// what it found.
std::vector<RepeatedPart> repeated_parts(const Ledger& ledger);

/// After this many passes a part whose states have not repeated is given up.
inline constexpr std::int64_t kMostPasses = 64;
/// After this many, once a part has been given up (what is around it won't settle either, nor will another order of
/// addresses) or kMostPlayed events have been played: 64 steps of the deepest published model (126 layers, bf16) have a
/// million.
inline constexpr std::int64_t kFewPasses = 8;
/// After this many, once the part itself has been given up and kMostPlayed events have been played.
inline constexpr std::int64_t kFewestPasses = 2;
inline constexpr std::size_t kMostPlayed = 1'200'000;

/// What the orders of addresses that one prediction is made over share: once one has not settled, the others are played
/// for less long.
struct PlayedOrders {
  std::vector<bool> given_up;  // by part
  std::size_t events = 0;      // of all orders
};

/// Whether a prediction can do without this order and the later ones: a job that settles only after many steps has then
/// been played with addresses that rise and with addresses that fall, and kMostPlayed events in all.
inline bool is_played_enough(const Placement& placement, std::size_t events) {
  return placement.order == AddressOrder::shuffled && events >= kMostPlayed;
}

/// What the orders played so far came to, and whether another is worth its time: few jobs have a band, and in those
/// that have one the first orders show its ends (docs/allocator.md has the figures).
class OrdersSeen {
 public:
  /// So many orders in a row that show nothing new are enough, which are at least six in all.
  static constexpr std::size_t kAlike = 4, kFewest = 6;

  /// What an order came to: its peaks, and its retries in the first steps and in a later one.
  void add(const AllocatorStats& stats, std::int64_t retries = 0, std::int64_t later_retries = 0) {
    const std::array figures{stats.reserved.peak, stats.allocated.peak, retries, later_retries};
    bool is_new = played_ == 0 || figures[0] < least_;
    least_ = played_ == 0 ? figures[0] : std::min(least_, figures[0]);
    for (std::size_t i = 0; i < figures.size(); ++i) {
      is_new = is_new || figures[i] > most_[i];
      most_[i] = std::max(most_[i], figures[i]);
    }
    alike_ = is_new ? 0 : alike_ + 1;
    ++played_;
  }

  /// How many more there must be at least.
  std::size_t wanted() const {
    return std::max(kFewest - std::min(kFewest, played_), kAlike - std::min(kAlike, alike_));
  }

 private:
  std::size_t played_ = 0, alike_ = 0;  // alike_: at the end, in a row
  std::int64_t least_ = 0;              // reserved
  std::array<std::int64_t, 4> most_{};  // of each figure
};

struct Playback {
  bool out_of_memory = false;
  bool settled = true;     // every part came to a state that it had been in before
  bool grows = false;      // one that did not still asked the card for more in the last half of its passes
  std::int64_t steps = 0;  // passes of the steady step
  std::int64_t retries = 0, later_retries = 0;  // as in CapacityReplay
};

/// What a caller adds up beside the replay, event by event. The end of a pass that goes on as the one before it is not
/// played: what there was when it began is there again when it ends.
class RunningSums {
 public:
  RunningSums() = default;
  RunningSums(const RunningSums&) = delete;
  RunningSums(RunningSums&&) = delete;
  RunningSums& operator=(const RunningSums&) = delete;
  RunningSums& operator=(RunningSums&&) = delete;
  virtual ~RunningSums() = default;

  /// Keeps the sums as they are now, in place of those kept for the same `part` before.
  virtual void keep(std::size_t part) = 0;
  virtual void go_back(std::size_t part) = 0;
};

/// `Replay`: LedgerReplay or UnlimitedReplay.
template <typename Replay>
class LedgerPlayer {
 public:
  /// All outlive the player. `orders`: updated as this one is played. `sums`: of the events that are added.
  LedgerPlayer(const Ledger& ledger, const std::vector<RepeatedPart>& parts, Replay& replay, PlayedOrders& orders,
               RunningSums* sums = nullptr)
      : ledger_(ledger), parts_(parts), replay_(replay), orders_(orders), sums_(sums) {
    orders_.given_up.resize(parts.size(), false);
  }

  /// Calls `add` with one event after the other; false: out of memory, which ends the play.
  template <typename Add>
  Playback play(const Add& add) {
    return play_lists([&](std::span<const Event> events) { return std::ranges::all_of(events, add); });
  }
  /// Events that follow each other: some of the ledger's, up to where a repeat begins or ends or has a stop, or none of
  /// its own (RepeatedPart::left). A call for each of them would cost more than some of them do.
  using Sink = std::function<bool(std::span<const Event>)>;
  Playback play_lists(const Sink& add);

 private:
  struct Passes;
  bool add_events(std::size_t begin, std::size_t end, std::size_t part, const Sink& add);
  bool add_plainly(std::size_t begin, std::size_t end, const Sink& add);
  bool repeat(std::size_t part, const Sink& add);
  bool add_pass(std::size_t part, Passes& passes, const Sink& add);
  bool goes_on_alike(std::size_t stop, Passes& passes);
  bool large_pools_settled(std::size_t part, const ReplayState& state, const Passes& passes,
                           const AllocatorStats& begin) const;
  bool run_again(std::size_t part, std::int64_t times, const Sink& add);
  void carry(const RepeatedPart& part);
  std::int64_t most_passes(std::size_t part) const;
  void give_up(std::size_t part, const Passes& before);
  void note_cycle(const std::vector<std::int64_t>& retries_before, std::size_t first);
  void note_step(std::int64_t pass, std::int64_t retries_in_pass);
  std::int64_t retries() const { return replay_.stats().alloc_retries + skipped_retries_; }

  const Ledger& ledger_;
  const std::vector<RepeatedPart>& parts_;
  Replay& replay_;
  PlayedOrders& orders_;
  RunningSums* sums_;
  Playback result_;
  std::size_t played_ = 0;            // events of this order
  std::int64_t skipped_retries_ = 0;  // of passes that were not played, being known
};

}  // namespace vramfit
