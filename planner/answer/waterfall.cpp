#include "planner/answer/waterfall.h"

#include <algorithm>
#include <optional>

#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "planner/dimensions/dimensions.h"
#include "planner/search/changes.h"

namespace vramfit {

namespace {

using Fields = std::vector<std::string_view>;

/// The fields in which a plan may differ from what was asked for: first those that --allow changes, then those of each
/// row.
std::vector<Fields> groups_of_fields() {
  std::vector<Fields> groups;
  for (const JobField& field : job_fields()) {
    const bool is_of_row = std::ranges::any_of(dimensions(), [&](const Dimension& row) {
      return std::ranges::find(row.fields, field.name) != row.fields.end();
    });
    if (!is_of_row) groups.push_back({field.name});
  }
  for (const Dimension& row : dimensions()) groups.push_back(row.fields);
  return groups;
}

/// Whether any field has become another.
bool take(Job& job, const Job& from, const Fields& fields) {
  bool changed = false;
  for (const std::string_view name : fields) {
    const JobField& field = job_field_named(name);
    const std::string value = field.get(from);
    if (field.get(job) == value) continue;
    field.set(job, value);
    changed = true;
  }
  return changed;
}

}  // namespace

std::vector<PlanStep> waterfall(const PlanRequest& request, const Job& chosen, Evaluator& evaluator) {
  std::vector<PlanStep> steps;
  Job job = request.job, shown = request.job;
  const auto show = [&] {
    const std::optional<Job> resolved = possible_job(job, request);
    if (!resolved) return false;
    const Option option = evaluator.timed(*resolved);
    const Attempt attempt = evaluator.attempt(option, kNoLimit);
    if (!attempt.rank) return false;
    steps.push_back({.change = steps.empty() ? "" : job_as_flags(job, shown),
                     .total = attempt.rank->total,
                     .tokens_per_second = option.tokens_per_second});
    shown = job;
    return true;
  };
  if (!show()) return {};
  for (const Fields& fields : groups_of_fields()) {
    if (take(job, chosen, fields)) show();
  }
  return steps.size() > 1 ? steps : std::vector<PlanStep>{};
}

}  // namespace vramfit
