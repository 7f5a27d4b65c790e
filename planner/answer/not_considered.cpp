#include "planner/answer/not_considered.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "planner/answer/larger_cluster.h"
#include "planner/search/changes.h"
#include "planner/search/space.h"

namespace vramfit {

namespace {

/// Whether an alternative shows what the kind would give.
bool is_told_of(const Plan& plan, std::string_view kind) {
  return std::ranges::any_of(plan.alternatives, [&](const Candidate& candidate) {
    return std::ranges::any_of(candidate.needs,
                               [&](const std::string& need) { return need.substr(0, need.find(':')) == kind; });
  });
}

/// "precision, method": kinds of fields that nobody set, of which at least one change has rules.
std::string kinds_not_allowed(const PlanRequest& request, const Plan& plan) {
  std::vector<std::string_view> names;
  for (const bool last_resort : {false, true}) {
    for (const Change& change : changes_not_allowed(request, last_resort)) {
      const ResultChange& kind = *change.kinds.front();
      const std::string_view name = kind.name;
      const bool is_known = std::ranges::find(names, name) != names.end();
      if (is_known || request.is_fixed(kind.field) || is_told_of(plan, name)) continue;
      const std::optional<Job> job = possible_job(change.job, request);
      if (job && has_rules(*job, request.cluster)) names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Checkpoints that re-enter autograd fail where DDP looks for unused parameters, so that none of them are tried.
bool loses_checkpoints(const PlanRequest& request) {
  const Job& job = request.job;
  if (!job.reentrant_checkpoints || request.is_fixed("checkpointing") || request.cluster.cards() == 1) return false;
  Job checkpointed = job;
  checkpointed.checkpointing = FullCheckpointing{};
  const bool is_ddp = job.runtime == Runtime::pytorch && job.sharding == "no-shard";
  return is_ddp && finds_unused_parameters(checkpointed);
}

/// A value that the engine has and the search never tries, and the field it is of.
struct Untried {
  std::string_view field, what;
};
constexpr Untried kUntried[]{
    {"wrap", "units by size (--wrap size:N)"},
    {"allocator", "offsets computed beforehand (--allocator arena)"},
};

}  // namespace

std::vector<std::string> not_considered(const PlanRequest& request, const Plan& plan) {
  std::vector<std::string> list;
  if (const std::string kinds = kinds_not_allowed(request, plan); !kinds.empty()) {
    list.push_back(fmt::format("changes to the result (--allow {})", kinds));
  }
  const bool was_looked_for = !plan.chosen && request.names_host_memory;
  if (!was_looked_for && request.cluster.host_memory.n == 0 && could_offload(request)) {
    list.emplace_back("offload to host memory (--host-memory SIZE)");
  }
  if (loses_checkpoints(request)) {
    list.emplace_back(
        "checkpoints, on which DDP that looks for unused parameters fails where they re-enter autograd "
        "(--find-unused-parameters off)");
  }
  if (request.job.runtime != Runtime::vramfit || request.cluster.is_cpu()) return list;
  for (const Untried& each : kUntried) {
    if (!request.is_fixed(each.field)) list.emplace_back(each.what);
  }
  return list;
}

}  // namespace vramfit
