#include "estimator/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit {

// `never` would be shard-grad-op under another name; with embeddings in units of their own, `default` is `always`.
std::vector<Job> reshard_choices(const Job& job, const SearchSpace& /*space*/) {
  std::vector<Job> choices{job};
  choices.front().reshard = Reshard::by_default;
  if (!sharding_named(job.sharding).reshard) return choices;
  choices.insert(choices.begin(), choices.front());
  choices.front().reshard = Reshard::last_kept;
  if (!job.wrap_embeddings) {
    choices.push_back(choices.front());
    choices.back().reshard = Reshard::always;
  }
  return choices;
}

}  // namespace vramfit
