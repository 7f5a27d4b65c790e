// Changes to the training result that --allow can permit, as a table of kinds. A new kind is a row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/plan.h"

namespace vramfit {

/// A job with a different training result, and the value of --allow that permits it: "precision:bf16-pure".
struct Change {
  std::string needs;
  Job job;
  bool shown_if_faster = false;  // of a last resort that is allowed: beside a plan that does without it
};

struct ChangeKind {
  std::string_view name;         // as --allow takes it
  std::string_view field;        // the job field it changes
  bool last_resort = false;      // what is trained isn't comparable: used only when nothing else fits
  bool shown_if_faster = false;  // as in Change
  /// Changed jobs, the smallest change first; `values` are those that were named, or empty for any.
  std::vector<Job> (*choices)(const Job& job, const std::vector<std::string>& values);
  std::string (*value)(const Job& job);  // of a changed job, as --allow takes it: "bf16-pure"
};

/// Every kind that --allow accepts, besides "any".
std::span<const ChangeKind> change_kinds();

/// Changes that the request allows, or (`allowed` false) those that it doesn't. Every field that the user set keeps its
/// value, except the one that the kind changes; `--allow any` leaves that one alone too, unless its kind is named.
std::vector<Change> changes(const PlanRequest& request, bool allowed, bool last_resort);

}  // namespace vramfit
