// Which configuration needs the least memory, of all that were tried: what an answer without a plan tells of.
#pragma once

#include <optional>
#include <vector>

#include "planner/search/best_first.h"

namespace vramfit {

class SmallestNeed {
 public:
  /// The request and the evaluator outlive this object.
  SmallestNeed(const PlanRequest& request, Evaluator& evaluator) : request_(request), evaluator_(evaluator) {}

  /// What came of a configuration that was tried.
  void note(const Attempt& attempt, const Job& job);

  /// Tries configurations, those with the lowest bounds first, until no bound is below what was found; of the engine,
  /// which has thousands that need nearly the same, up to two percent below it, and then what differs from the smallest
  /// in one choice. Adds the bounds to `counts`.
  void find(const std::vector<std::vector<Change>>& groups, SearchCounts& counts);

  /// None if there are no rules for any. Where some lack host memory alone, the one of these that lacks the least,
  /// among those that were tried: what is looked for is the smallest need of the card.
  const std::optional<Job>& job() const { return lacks_host_ ? lacks_host_ : smallest_; }

  /// The first one that there are no rules for.
  const std::optional<Job>& without_rules() const { return without_rules_; }

 private:
  Bytes worth_knowing() const;
  bool try_neighbours();

  const PlanRequest& request_;
  Evaluator& evaluator_;
  std::optional<Job> smallest_, lacks_host_, without_rules_;
  Bytes total_ = kNoLimit;  // of the smallest
  Bytes host_ = kNoLimit;   // of a rank, of the one that lacks host memory alone
};

}  // namespace vramfit
