#include "estimator/allocator/ledger_player.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <span>

#include "estimator/allocator/unlimited_replay.h"

namespace vramfit {

namespace {

/// Blocks that a pass frees without having made them, and those that it makes and leaves.
struct Balance {
  std::vector<Event> found, made;
};

/// Ids are given in the order of birth, so those of the part are the ones from its first on.
Balance balance_of(const Ledger& ledger, const Repeat& part) {
  Balance balance;
  std::int64_t first = -1;
  std::vector<const Event*> alive;
  for (std::size_t i = part.begin; i < part.end; ++i) {
    const Event& event = ledger.events[i];
    if (event.bytes == 0) continue;  // an emptied cache has no id
    if (event.bytes > 0) {
      if (first < 0) first = event.id;
      alive.push_back(&event);
    } else if (first >= 0 && event.id >= first) {
      alive[static_cast<std::size_t>(event.id - first)] = nullptr;
    } else {
      balance.found.push_back(event);
    }
  }
  for (const Event* event : alive) {
    if (event != nullptr) balance.made.push_back(*event);
  }
  return balance;
}

/// Pairs what a pass found with what it made in its stead: the same label and bytes.
void pair_up(const Balance& balance, RepeatedPart& part) {
  std::map<std::pair<int, std::int64_t>, std::deque<Event>> made;
  for (const Event& event : balance.made) made[{event.label, event.bytes}].push_back(event);
  for (const Event& event : balance.found) {
    std::deque<Event>& alike = made[{event.label, -event.bytes}];
    if (alike.empty()) {
      part.is_closed = false;
      return;
    }
    part.carried.emplace_back(event.id, alike.front().id);
    alike.pop_front();
  }
  for (const auto& [label, events] : made) part.left.insert(part.left.end(), events.begin(), events.end());
  for (Event& event : part.left) event.bytes = -event.bytes;
  if (!part.left.empty() && part.events.times != kForever) part.is_closed = false;
}

constexpr std::size_t kStops = 4, kEventsBetween = 200;

/// Whether the sums are equal: they are where states are, and a state may take as long as hundreds of events. What is
/// requested and allocated is not looked at while large pools are left out, being equal then.
bool is_as_much(const AllocatorStats& a, const AllocatorStats& b, bool only_small) {
  if (a.reserved.current != b.reserved.current) return false;
  return only_small || (a.requested.current == b.requested.current && a.allocated.current == b.allocated.current);
}

/// Some, spread over the events of the part that are not inside another one.
void add_stops(RepeatedPart& part, std::span<const RepeatedPart> inner) {
  const std::size_t events = part.events.end - part.events.begin;
  const std::size_t distance = std::max(events / kStops, kEventsBetween);
  for (std::size_t stop = part.events.begin + distance / 4; stop < part.events.end; stop += distance) {
    const bool is_inside = std::ranges::any_of(
        inner, [&](const RepeatedPart& each) { return each.events.begin < stop && stop < each.events.end; });
    if (!is_inside) part.stops.push_back(stop);
  }
}

}  // namespace

std::vector<RepeatedPart> repeated_parts(const Ledger& ledger) {
  std::vector<RepeatedPart> parts;
  for (const Repeat& repeat : ledger.repeats) {
    RepeatedPart part;
    part.events = repeat;
    part.next = parts.size() + 1;
    while (part.next < ledger.repeats.size() && ledger.repeats[part.next].end <= repeat.end) ++part.next;
    if (!ledger.labels.empty()) pair_up(balance_of(ledger, repeat), part);
    const auto events = std::span(ledger.events).subspan(repeat.begin, repeat.end - repeat.begin);
    part.empties_cache = std::ranges::find(events, 0, &Event::bytes) != events.end();
    parts.push_back(std::move(part));
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    add_stops(parts[p], std::span(parts).subspan(p + 1, parts[p].next - p - 1));
  }
  return parts;
}

/// The states before each pass of a part, and what had happened until then.
template <typename Replay>
struct LedgerPlayer<Replay>::Passes {
  std::vector<ReplayState> states;
  std::vector<std::int64_t> retries, reserved;  // reserved: the peak
  std::optional<Replay> latest;                 // before the latest pass, where there was one before it
  std::int64_t latest_skipped = 0;              // skipped_retries_ then
  /// What the latest pass had come to.
  struct Stop {
    std::optional<ReplayState> state;  // none: it can't be that of the pass before, and wasn't looked at
    AllocatorStats stats;
    std::int64_t skipped_retries = 0;
  };
  std::vector<Stop> stops;
  bool is_alike = false;    // the latest pass ended as the one before it, which was not played
  bool only_small = false;  // in large pools all passes are as the latest
};

template <typename Replay>
Playback LedgerPlayer<Replay>::play_lists(const Sink& add) {
  result_ = {};
  result_.out_of_memory = !add_events(0, ledger_.events.size(), 0, add);
  if (result_.steps == 0) result_.retries = retries();
  return result_;
}

template <typename Replay>
bool LedgerPlayer<Replay>::add_plainly(std::size_t begin, std::size_t end, const Sink& add) {
  played_ += end - begin;
  orders_.events += end - begin;
  return add(std::span(ledger_.events).subspan(begin, end - begin));
}

template <typename Replay>
bool LedgerPlayer<Replay>::add_events(std::size_t begin, std::size_t end, std::size_t part, const Sink& add) {
  for (; part < parts_.size() && parts_[part].events.begin < end; part = parts_[part].next) {
    if (!add_plainly(begin, parts_[part].events.begin, add) || !repeat(part, add)) return false;
    begin = parts_[part].events.end;
  }
  return add_plainly(begin, end, add);
}

template <typename Replay>
void LedgerPlayer<Replay>::carry(const RepeatedPart& part) {
  for (const auto& [found, made] : part.carried) replay_.swap(found, made);
}

template <typename Replay>
bool LedgerPlayer<Replay>::run_again(std::size_t part, std::int64_t times, const Sink& add) {
  for (std::int64_t pass = 0; pass < times; ++pass) {
    carry(parts_[part]);
    if (!add_events(parts_[part].events.begin, parts_[part].events.end, part + 1, add)) return false;
  }
  return true;
}

template <typename Replay>
std::int64_t LedgerPlayer<Replay>::most_passes(std::size_t part) const {
  if (orders_.given_up[part] && orders_.events >= kMostPlayed) return kFewestPasses;
  const bool is_any_given_up = std::ranges::find(orders_.given_up, true) != orders_.given_up.end();
  return is_any_given_up || played_ >= kMostPlayed ? kFewPasses : kMostPasses;
}

/// Whether reserved memory grows is seen where a part is given up first: after that, it may be played twice only.
template <typename Replay>
void LedgerPlayer<Replay>::give_up(std::size_t part, const Passes& before) {
  result_.settled = false;
  if (orders_.given_up[part] && orders_.events >= kMostPlayed) return;
  orders_.given_up[part] = true;
  result_.grows = result_.grows || replay_.stats().reserved.peak > before.reserved[before.reserved.size() / 2];
}

/// Whether the rest of this pass is that of the pass before: then the replay is as it was when this one began.
template <typename Replay>
bool LedgerPlayer<Replay>::goes_on_alike(std::size_t stop, Passes& passes) {
  typename Passes::Stop now{std::nullopt, replay_.stats(), skipped_retries_};
  if (stop == passes.stops.size()) {
    now.state = replay_.state();
    passes.stops.push_back(now);
    return false;
  }
  const typename Passes::Stop then = std::exchange(passes.stops[stop], now);
  if (!is_as_much(now.stats, then.stats, passes.only_small)) return false;
  now.state = replay_.state();
  if (passes.only_small && then.state) now.state->large = then.state->large;  // as it would be
  passes.stops[stop].state = now.state;
  if (then.state != now.state || !passes.latest) return false;
  const AllocatorStats& begin = passes.latest->stats();
  if (now.stats.device_allocs != begin.device_allocs || now.stats.device_frees != begin.device_frees) return false;
  replay_.repeat_up_to(*passes.latest, then.stats);
  skipped_retries_ += passes.latest_skipped - then.skipped_retries;
  return true;
}

/// Whether the large pools go through each later pass of the steady step as through the one that has just been played:
/// they ended it in the state in which they began it, and small ones are no matter of theirs. The sizes of small blocks
/// don't depend on the state of their pools, so what all pools hold together in a later pass is what they held in this
/// one, and of large pools nothing more need be played. In a step that has repeats inside, those would be played for
/// longer or less long; and what follows the step would find large blocks where the step found them. A large block that
/// a step frees and makes anew would count all the time, beside small ones that live where it doesn't.
template <typename Replay>
bool LedgerPlayer<Replay>::large_pools_settled(std::size_t index, const ReplayState& state, const Passes& passes,
                                               const AllocatorStats& begin) const {
  const RepeatedPart& part = parts_[index];
  const bool carries_large =
      std::ranges::any_of(part.carried, [&](const auto& pair) { return replay_.is_large(pair.first); });
  return !carries_large && part.events.times == kForever && part.next == index + 1 &&
         part.events.end == ledger_.events.size() && !part.empties_cache && replay_.pools_are_apart() &&
         state.large == passes.states.back().large && replay_.stats().device_allocs == begin.device_allocs &&
         replay_.stats().device_frees == begin.device_frees;
}

template <typename Replay>
bool LedgerPlayer<Replay>::add_pass(std::size_t index, Passes& passes, const Sink& add) {
  const RepeatedPart& part = parts_[index];
  std::size_t begin = part.events.begin, inner = index + 1;
  for (std::size_t stop = 0; stop < part.stops.size(); ++stop) {
    if (!add_events(begin, part.stops[stop], inner, add)) return false;
    begin = part.stops[stop];
    while (inner < part.next && parts_[inner].events.begin < begin) inner = parts_[inner].next;
    passes.is_alike = goes_on_alike(stop, passes);
    if (!passes.is_alike) continue;
    if (sums_ != nullptr) sums_->go_back(index);
    return true;
  }
  return add_events(begin, part.events.end, inner, add);
}

template <typename Replay>
bool LedgerPlayer<Replay>::repeat(std::size_t index, const Sink& add) {
  const RepeatedPart& part = parts_[index];
  const bool is_step = part.events.times == kForever;
  Passes before;
  ReplayState state = replay_.state();
  for (std::int64_t pass = 1;; ++pass) {
    before.states.push_back(state);
    before.retries.push_back(retries());
    before.reserved.push_back(replay_.stats().reserved.peak);
    const AllocatorStats begin = replay_.stats();
    replay_.set_only_small(before.only_small);
    const bool done = add_pass(index, before, add);
    if (is_step) note_step(pass, retries() - before.retries.back());
    if (!done) return false;
    if (!before.is_alike) {
      if (pass == part.events.times || !part.is_closed) return true;
      if (pass >= most_passes(index)) {
        give_up(index, before);
        return true;
      }
      add(part.left);
      carry(part);
      state = replay_.state();
    }
    replay_.set_only_small(false);
    const auto seen = std::ranges::find(before.states, state);
    if (seen == before.states.end()) {
      before.only_small = before.only_small || large_pools_settled(index, state, before, begin);
      if (before.latest) {
        *before.latest = replay_;  // into the memory of the one before
      } else {
        before.latest.emplace(replay_);
      }
      before.latest_skipped = skipped_retries_;
      if (sums_ != nullptr) sums_->keep(index);
      continue;
    }
    carry(part);  // back again: what follows knows the blocks by their own ids
    const auto first = static_cast<std::size_t>(seen - before.states.begin());
    if (is_step) {
      note_cycle(before.retries, first);
      return true;
    }
    const auto period = static_cast<std::int64_t>(before.states.size() - first);
    const std::int64_t left = part.events.times - pass;
    skipped_retries_ += left / period * (retries() - before.retries[first]);
    return run_again(index, left % period, add);
  }
}

/// The passes from `first` on come again for ever: the first of them, too, is then a later step.
template <typename Replay>
void LedgerPlayer<Replay>::note_cycle(const std::vector<std::int64_t>& retries_before, std::size_t first) {
  for (std::size_t pass = first; pass < retries_before.size(); ++pass) {
    const std::int64_t after = pass + 1 < retries_before.size() ? retries_before[pass + 1] : retries();
    result_.later_retries = std::max(result_.later_retries, after - retries_before[pass]);
  }
}

template <typename Replay>
void LedgerPlayer<Replay>::note_step(std::int64_t pass, std::int64_t retries_in_pass) {
  result_.steps = pass;
  if (pass == 1) {
    result_.retries = retries();
  } else {
    result_.later_retries = std::max(result_.later_retries, retries_in_pass);
  }
}

template class LedgerPlayer<LedgerReplay>;
template class LedgerPlayer<UnlimitedReplay>;

}  // namespace vramfit
