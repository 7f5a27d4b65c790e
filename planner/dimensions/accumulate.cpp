#include "planner/dimensions/dimensions.h"

namespace vramfit {

// Whole gradients on every rank, for fewer reductions: a choice where there are several micro-batches and shards.
std::vector<Job> accumulate_choices(const Job& job, const SearchSpace& /*space*/) {
  std::vector<Job> choices{job};
  choices.front().accumulate = Accumulate::sharded;
  if (job.accumulation == 1 || job.mesh.shard == 1) return choices;
  choices.push_back(job);
  choices.back().accumulate = Accumulate::unsharded;
  return choices;
}

}  // namespace vramfit
