#include "job/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit {

// `never` would be shard-grad-op under another name; with embeddings in units of their own, `default` is `always`.
// Across nodes, groups of a node's cards gather for backward without the network.
std::vector<Job> reshard_choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> choices{job};
  choices.front().reshard = Reshard::by_default;
  if (!sharding_named(job.sharding).reshard) return choices;
  choices.insert(choices.begin(), choices.front());
  choices.front().reshard = Reshard::last_kept;
  if (!job.wrap_embeddings || job.wrap != Wrap::layer) {  // there is a root
    choices.push_back(choices.front());
    choices.back().reshard = Reshard::always;
  }
  const std::int64_t node = space.cluster.cards_per_node;
  if (node > 1 && node < job.mesh.shard && job.mesh.shard % node == 0) {
    choices.push_back(choices.front());
    choices.back().reshard = Reshard::groups;
    choices.back().reshard_groups = node;
  }
  return choices;
}

}  // namespace vramfit
