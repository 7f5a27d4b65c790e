// Changes to the training result that --allow permits, of the kinds that estimator/changes/result_changes.h lists.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimator/changes/result_changes.h"
#include "planner/plan.h"

namespace vramfit {

/// A job with a different training result: at most one change of each kind.
struct Change {
  Job job;
  std::vector<std::string> needs = {};          // what --allow names to permit it: {"precision:bf16-pure"}
  std::vector<const ResultChange*> kinds = {};  // of these, in the order of result_changes()
};

/// The job with what follows from its fields, as it would be searched; none if it can't be at all: fields contradict
/// each other, a card may not compute in its precision, and CPU ranks have no CUDA kernels.
std::optional<Job> possible_job(const Job& job, const PlanRequest& request);

/// Its values of --allow: "precision:bf16-pure,optimizer:adamw-8bit".
std::string allow_text(const std::vector<std::string>& needs);

/// Those of its changes that are for where nothing else fits, as `needs` has them.
std::vector<std::string> last_resorts_of(const Change& change);

/// Changes of one kind each that the request doesn't allow, those that are last resorts or the others; of a kind the
/// smallest first.
std::vector<Change> changes_not_allowed(const PlanRequest& request, bool last_resort);

/// What is searched, in groups: one after the other, until there is a plan. All combinations of the changes that the
/// request allows are in one of them, but those that can't be and those that are another one's job. A group has those
/// with the same last resorts: the first has none, then come those with one, and so on, each in the order of
/// result_changes(); and in a group likewise, the fewest changes first. So the very first is the job as it was asked
/// for. Every field that the user set keeps its value, except those that the kinds change; `--allow any` leaves these
/// alone too, unless their kinds are named. Throws a Conflict for a kind or a value that is named and that the job
/// can't have, whatever else is allowed, and an InputError for too many combinations.
std::vector<std::vector<Change>> groups_to_search(const PlanRequest& request);

/// "--allow optimizer:adamw changes nothing: the job has it": of each value that is named and the job's own.
std::vector<std::string> void_allowed(const PlanRequest& request);

/// Of all of them those that may need least: where two differ only in sizes (a shorter sequence, a smaller global
/// batch), the smaller needs no more.
std::vector<Change> smallest_sizes(const std::vector<std::vector<Change>>& groups);

/// What would be searched if `change`, of one kind, were allowed too: those with it.
std::vector<std::vector<Change>> groups_with(const PlanRequest& request, const Change& change);

}  // namespace vramfit
