#include "job/sharding/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

/// Whether they divide into several groups of several.
bool has_groups(std::int64_t cards) {
  for (std::int64_t ranks = 2; ranks * ranks <= cards; ++ranks) {
    if (cards % ranks == 0) return true;
  }
  return false;
}

// One card has nothing to split, but for DeepSpeed, which has no other way, and where --reshard was set, which without
// sharding would contradict it; hybrid sharding needs cards that divide into groups, or is full sharding by another
// name.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs;
  const bool sets_reshard = !std::holds_alternative<ReshardByDefault>(job.reshard);
  const bool may_split = space.cluster.cards() > 1 || job.runtime == Runtime::deepspeed;
  for (const Sharding& row : kShardings) {
    if (row.parameters && !may_split && !(sets_reshard && row.name == job.sharding)) continue;
    if (row.hybrid && !has_groups(space.cluster.cards())) continue;
    if (row.of_deepspeed && job.runtime != Runtime::deepspeed) continue;
    jobs.push_back(job);
    jobs.back().sharding = row.name;
  }
  return jobs;
}

}  // namespace

Dimension sharding() {
  return {.name = "sharding",
          .cost = "gathers and reductions over the links",
          .fields = {"sharding"},
          .choices = choices,
          .may_contradict = true};
}

}  // namespace vramfit::dimension
