#include "planner/search/smallest_need.h"

#include <algorithm>
#include <utility>

#include "planner/search/space.h"

namespace vramfit {

namespace {

constexpr int kMostRounds = 3;               // of steps to a neighbour that needs less
constexpr std::size_t kMostNeighbours = 24;  // that are tried in a round

}  // namespace

void SmallestNeed::note(const Attempt& attempt, const Job& job) {
  if (!attempt.is_modelled && !without_rules_) without_rules_ = job;
  if (!attempt.rank) return;
  if (attempt.rank->total < total_) {
    total_ = attempt.rank->total;
    smallest_ = job;
  }
  const bool fits_the_card = verdict_of(*attempt.rank, request_.cluster.card.memory) == Verdict::fits;
  if (!attempt.fits && fits_the_card && attempt.rank->host < host_) {
    host_ = attempt.rank->host;
    lacks_host_ = job;
  }
}

// The most that a job may need to be looked at: where thousands need nearly the same, the last two percent tell nobody
// anything, unless it is what is missing.
Bytes SmallestNeed::worth_knowing() const {
  if (total_ == kNoLimit) return kNoLimit;
  if (request_.job.runtime != Runtime::vramfit) return total_ - Bytes{1};  // few enough to look at all
  const std::int64_t missing = std::max<std::int64_t>(total_.n - request_.cluster.card.memory.n, 0);
  return total_ - Bytes{1 + std::min(missing / 20, total_.n / 50)};
}

// What differs from the smallest in one choice, and may need less: those with the lowest bounds. Returns whether any
// does.
bool SmallestNeed::try_neighbours() {
  const Bytes before = total_;
  std::vector<Option> options;
  for (Job& job : Space(request_, *smallest_).neighbours(*smallest_)) {
    const Bytes least = evaluator_.least_total(job);
    if (least >= total_) continue;
    options.push_back({.job = std::move(job), .time = {}, .needs = {}, .least_total = least, .program = {}});
  }
  std::ranges::stable_sort(options, {}, &Option::least_total);
  if (options.size() > kMostNeighbours) options.resize(kMostNeighbours);
  for (const Option& option : options) note(evaluator_.attempt(option, total_), option.job);
  return total_ < before;
}

void SmallestNeed::find(const std::vector<std::vector<Change>>& groups, SearchCounts& counts) {
  SearchCounts own;  // the configurations have been counted
  BestFirst queue(evaluator_, request_, smallest_sizes(groups), BestBy::need, own);
  queue.look_at_one_of_alike();
  queue.pass_over_from(total_);
  while (const std::optional<Option> option = queue.next(worth_knowing())) {
    const Attempt attempt = evaluator_.attempt(*option, total_);
    note(attempt, option->job);
    queue.pass_over_from(total_);
    queue.retry_last(attempt);
  }
  for (int round = 0; smallest_ && request_.job.runtime == Runtime::vramfit && round < kMostRounds; ++round) {
    if (!try_neighbours()) break;
  }
  counts.bounds += own.bounds;
}

}  // namespace vramfit
