#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// Whole gradients on every rank, for fewer reductions: a choice where there are several micro-batches and shards.
std::vector<Job> choices(const Job& job, const SearchSpace& /*space*/) {
  std::vector<Job> jobs{job};
  jobs.front().accumulate = Accumulate::sharded;
  if (job.accumulation == 1 || job.mesh.shard == 1) return jobs;
  jobs.push_back(job);
  jobs.back().accumulate = Accumulate::unsharded;
  return jobs;
}

}  // namespace

Dimension accumulate() {
  return {.name = "accumulate",
          .cost = "a reduction of each unit in every micro-batch",
          .fields = {"accumulate"},
          .choices = choices,
          .open = OpenChoice::accumulate,
          .is_simple = true};
}

}  // namespace vramfit::dimension
