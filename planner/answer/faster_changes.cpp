#include "planner/answer/faster_changes.h"

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "planner/answer/larger_batch.h"
#include "planner/answer/plan_words.h"
#include "planner/search/best_first.h"

namespace vramfit {

namespace {

class FasterChanges {
 public:
  FasterChanges(const PlanRequest& request, std::span<const std::vector<Change>> groups, Evaluator& evaluator,
                Plan& plan)
      : request_(request),
        groups_(groups),
        evaluator_(evaluator),
        plan_(plan),
        speed_(plan.chosen->tokens_per_second) {}

  void add_not_allowed() {
    for (const Change& change : changes_not_allowed(request_, false)) {
      begin_kind(change.kinds.front());
      show(fastest_with(change));
    }
  }

  // Groups before that of the plan have none.
  void add_last_resorts() {
    for (const std::vector<Change>& bases : groups_.subspan(1)) {
      const ResultChange* const last = bases.front().kinds.back();
      if (last_resorts_of(bases.front()).size() != 1 || !last->shown_if_faster) continue;
      begin_kind(last);
      show(fastest_of(bases, above_));
    }
  }

 private:
  void begin_kind(const ResultChange* kind) {
    if (kind != kind_) above_ = (1 + kLeastGain) * speed_;
    kind_ = kind;
  }

  void show(std::optional<Candidate> found) {
    if (!found) return;
    above_ = found->tokens_per_second;
    found->why = fmt::format("with --allow {}: faster by {}, needs {}", allow_text(found->needs),
                             percent(found->tokens_per_second, speed_), needs_text(found->estimate));
    plan_.alternatives.push_back(*std::move(found));
  }

  std::optional<Candidate> fastest_of(const std::vector<Change>& bases, double above) {
    return fastest_that_fits(evaluator_, request_, bases, above, plan_.search);
  }

  // What the plan would be if the change were allowed too, if that is faster. It may need fewer last resorts than the
  // plan.
  std::optional<Candidate> fastest_with(const Change& change) {
    const std::vector<std::string> of_plan = last_resorts_of(groups_.front().front());
    for (const std::vector<Change>& bases : groups_with(request_, change)) {
      const bool is_like_plan = last_resorts_of(bases.front()) == of_plan;
      std::optional<Candidate> found = fastest_of(bases, is_like_plan ? above_ : -1);
      if (found && found->tokens_per_second > above_) return found;
      if (found || is_like_plan) return std::nullopt;
    }
    return std::nullopt;
  }

  const PlanRequest& request_;
  std::span<const std::vector<Change>> groups_;
  Evaluator& evaluator_;
  Plan& plan_;
  double speed_;
  const ResultChange* kind_ = nullptr;
  double above_ = 0;  // that the next must be, as another of the same kind was
};

}  // namespace

void add_faster_changes(const PlanRequest& request, std::span<const std::vector<Change>> groups, Evaluator& evaluator,
                        Plan& plan) {
  FasterChanges changes(request, groups, evaluator, plan);
  changes.add_not_allowed();
  changes.add_last_resorts();
}

}  // namespace vramfit
