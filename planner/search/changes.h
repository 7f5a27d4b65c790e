// Changes to the training result that --allow permits, of the kinds that estimator/result_changes.h lists.
#pragma once

#include <string>
#include <vector>

#include "estimator/result_changes.h"
#include "planner/plan.h"

namespace vramfit {

/// A job with a different training result, and the value of --allow that permits it: "precision:bf16-pure".
struct Change {
  std::string needs;
  Job job;
  const ResultChange* kind = nullptr;  // null: the job as it was asked for
};

/// Changes that the request allows, or (`allowed` false) those that it doesn't. Every field that the user set keeps its
/// value, except the one that the kind changes; `--allow any` leaves that one alone too, unless its kind is named.
/// Throws InputError for a kind that is named and that the job can't have.
std::vector<Change> changes(const PlanRequest& request, bool allowed, bool last_resort);

/// What is searched, in groups: one after the other, until there is a plan. The first is the job as it was asked for
/// and with each change that the request allows, but for last resorts; each of these is a group. Throws as changes()
/// does.
std::vector<std::vector<Change>> groups_to_search(const PlanRequest& request);

}  // namespace vramfit
