#include "cli/rehearse/search/search_schedule.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace vramfit {
namespace {

/// Whether a value fits, as far as it is known.
using Fits = std::function<std::optional<bool>(std::int64_t)>;

/// Where a search of a range stands: the largest that fits lies from `low`, which fits, to below `high`, which does not
/// or is beyond the range.
struct RangeState {
  std::optional<std::int64_t> largest, needed;  // needed: the value to try next; none: the search is done
  std::int64_t low = 0, high = 0;
};

RangeState range_state(std::int64_t first, std::int64_t last, const Fits& fits) {
  RangeState state{.largest = {}, .needed = {}, .low = first - 1, .high = last + 1};
  for (std::int64_t next = first; state.high - state.low > 1;) {
    const std::optional<bool> found = fits(next);
    if (!found) {
      state.needed = next;
      break;
    }
    (*found ? state.low : state.high) = next;
    if (*found) state.largest = next;
    if (!state.largest) break;  // not even the first
    const std::int64_t low = state.low, high = state.high;
    next = high > last ? std::min(last, std::max(low + 1, 2 * low)) : low + (high - low) / 2;
  }
  return state;
}

constexpr std::size_t kMostGuesses = 64;  // of a row, which is more than can run at once

/// Of one row: what was tried, and what is under way.
class Row {
 public:
  Row(SearchPoint values, const SearchAxis* range) : range_(range) { row_.values = std::move(values); }

  const SearchRow& row() const { return row_; }
  bool is_over() const { return is_over_; }
  bool is_interrupted() const { return row_.failed() != nullptr && row_.failed()->is_interrupted; }
  std::optional<std::int64_t> needed() const { return is_over_ ? std::nullopt : state({}).needed; }
  bool must_run_alone(std::int64_t value) const { return suspects_.contains(value); }

  SearchPoint point(std::int64_t value) const {
    SearchPoint point = row_.values;
    if (range_ != nullptr) point.emplace_back(range_->name, fmt::to_string(value));
    return point;
  }

  /// What may be needed, the next one first, without what is known or runs.
  std::vector<std::int64_t> candidates(TrialPool& pool) {
    std::vector<std::int64_t> found;
    if (is_over_) return found;
    std::deque<std::map<std::int64_t, bool>> guesses{{}};
    for (std::size_t seen = 0; seen < kMostGuesses && !guesses.empty(); ++seen) {
      const std::map<std::int64_t, bool> guess = std::move(guesses.front());
      guesses.pop_front();
      const auto value = state(guess).needed;
      if (!value) continue;
      look_up(*value, pool);
      const bool is_free = !known_.contains(*value) && !running_.contains(*value);
      if (is_free && (guess.empty() || !suspects_.contains(*value))) found.push_back(*value);
      for (const bool fits : {true, false}) {
        if (!is_possible(*value, fits)) continue;
        guesses.push_back(guess);
        guesses.back().emplace(*value, fits);
      }
    }
    return found;
  }

  void start(std::int64_t value, TrialPool& pool) {
    running_.insert(value);
    pool.start(point(value));
  }

  /// Whether it was one of this row's.
  bool take(const TrialPool::Ended& ended) {
    const auto found =
        std::ranges::find_if(running_, [&](std::int64_t value) { return point(value) == ended.trial.point; });
    if (found == running_.end()) return false;
    if (ended.trial.is_failure() && !ended.was_alone) {
      suspects_.insert(*found);
    } else if (ended.trial.is_interrupted) {  // it may be one that was tried beforehand: the row ends in any case
      RehearsalTrial trial = ended.trial;
      const std::int64_t next = needed().value_or(*found);
      trial.point = point(next);
      known_.insert_or_assign(next, std::move(trial));
    } else {
      known_.insert_or_assign(*found, ended.trial);
    }
    running_.erase(found);
    return true;
  }

  /// Takes over what is known as far as the search needs it.
  void settle(TrialPool& pool) {
    while (!is_over_) {
      const RangeState now = state({});
      row_.largest = now.largest;
      is_over_ = !now.needed;
      if (is_over_) break;
      look_up(*now.needed, pool);
      const auto trial = known_.find(*now.needed);
      if (trial == known_.end()) break;
      tried_.insert(*now.needed);
      pool.accept(trial->second);
      is_over_ = trial->second.is_interrupted || trial->second.is_failure();
    }
    row_.trials.clear();
    for (const std::int64_t value : tried_) row_.trials.push_back(known_.at(value));
    drop_what_is_not_needed(pool);
  }

  void cancel_all(TrialPool& pool) {
    for (const std::int64_t value : running_) pool.cancel(point(value));
    running_.clear();
  }

 private:
  RangeState state(const std::map<std::int64_t, bool>& guess) const {
    const auto fits = [&](std::int64_t value) -> std::optional<bool> {
      if (tried_.contains(value)) return known_.at(value).exit_code == 0;
      const auto guessed = guess.find(value);
      return guessed == guess.end() ? std::nullopt : std::optional(guessed->second);
    };
    return range_ == nullptr ? range_state(1, 1, fits) : range_state(range_->first, range_->last, fits);
  }

  bool is_possible(std::int64_t value, bool fits) const {
    const auto trial = known_.find(value);
    if (trial == known_.end()) return true;
    return !trial->second.is_failure() && fits == (trial->second.exit_code == 0);
  }

  void look_up(std::int64_t value, TrialPool& pool) {
    if (known_.contains(value) || running_.contains(value) || !looked_up_.insert(value).second) return;
    if (auto trial = pool.kept(point(value))) known_.emplace(value, std::move(*trial));
  }

  void drop_what_is_not_needed(TrialPool& pool) {
    const RangeState now = state({});
    std::erase_if(running_, [&](std::int64_t value) {
      const bool is_open = !is_over_ && value > now.low && value < now.high;
      if (!is_open) pool.cancel(point(value));
      return !is_open;
    });
  }

  SearchRow row_;
  const SearchAxis* range_;
  std::map<std::int64_t, RehearsalTrial> known_;
  std::set<std::int64_t> tried_;     // of what is known, what the search needed
  std::set<std::int64_t> running_;   // under way
  std::set<std::int64_t> suspects_;  // failed beside others
  std::set<std::int64_t> looked_up_;
  bool is_over_ = false;
};

/// All combinations of the values that are listed.
std::vector<SearchPoint> combinations(const std::vector<SearchAxis>& axes) {
  std::vector<SearchPoint> points{{}};
  for (const SearchAxis& axis : axes) {
    if (axis.is_range) continue;
    std::vector<SearchPoint> more;
    for (const SearchPoint& point : points) {
      for (const std::string& value : axis.values) {
        more.push_back(point);
        more.back().emplace_back(axis.name, value);
      }
    }
    points = std::move(more);
  }
  return points;
}

class Search {
 public:
  Search(const std::vector<SearchAxis>& axes, TrialPool& pool) : pool_(pool) {
    result_.axes = axes;
    for (SearchPoint& values : combinations(axes)) rows_.emplace_back(std::move(values), result_.range());
  }

  SearchResult run() {
    settle();
    while (!is_interrupted() && !std::ranges::all_of(rows_, &Row::is_over)) {
      start_more();
      if (const auto ended = pool_.wait()) take(*ended);
      settle();
    }
    for (Row& row : rows_) row.cancel_all(pool_);
    for (Row& row : rows_) {
      if (row.is_over() && (!row.is_interrupted() || &row == interrupted())) result_.rows.push_back(row.row());
    }
    return std::move(result_);
  }

 private:
  /// An interrupted search has the rows that were done, and the first that was not.
  const Row* interrupted() const {
    const auto found = std::ranges::find_if(rows_, &Row::is_interrupted);
    return found == rows_.end() ? nullptr : &*found;
  }
  bool is_interrupted() const { return interrupted() != nullptr; }

  void settle() {
    for (Row& row : rows_) row.settle(pool_);
  }

  void take(const TrialPool::Ended& ended) {
    for (Row& row : rows_) {
      if (row.take(ended)) return;
    }
  }

  /// Whether one must run alone, or does. It starts once all others have ended, and no other starts until it has.
  bool keeps_one_alone() {
    for (Row& row : rows_) {
      const auto needed = row.needed();
      if (!needed || !row.must_run_alone(*needed)) continue;
      if (pool_.is_idle()) row.start(*needed, pool_);
      runs_alone_ = true;
      return true;
    }
    runs_alone_ = runs_alone_ && !pool_.is_idle();
    return runs_alone_;
  }

  /// First what each row needs, then what each may need next, and so on.
  void start_more() {
    if (keeps_one_alone()) return;
    std::vector<std::vector<std::int64_t>> candidates;
    std::size_t most = 0;
    for (Row& row : rows_) {
      candidates.push_back(row.candidates(pool_));
      most = std::max(most, candidates.back().size());
    }
    for (std::size_t rank = 0; rank < most; ++rank) {
      for (std::size_t row = 0; row < rows_.size(); ++row) {
        if (rank >= candidates[row].size()) continue;
        if (!pool_.has_room()) return;
        rows_[row].start(candidates[row][rank], pool_);
      }
    }
  }

  TrialPool& pool_;
  SearchResult result_{};
  std::vector<Row> rows_;
  bool runs_alone_ = false;
};

}  // namespace

SearchResult run_search(const std::vector<SearchAxis>& axes, TrialPool& pool) { return Search(axes, pool).run(); }

}  // namespace vramfit
