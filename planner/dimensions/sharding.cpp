#include "estimator/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit {

// One card has nothing to split. Hybrid sharding keeps gathers within a node, so it needs two nodes.
std::vector<Job> sharding_choices(const Job& job, const SearchSpace& space) {
  const Cluster& cluster = space.cluster;
  std::vector<Job> choices;
  for (const Sharding& row : kShardings) {
    if (row.parameters && cluster.cards() == 1) continue;
    if (row.hybrid && (cluster.nodes == 1 || cluster.cards_per_node == 1)) continue;
    Job choice = job;
    choice.sharding = row.name;
    choice.mesh = {.replicate = cluster.cards(), .shard = 1};
    if (row.parameters) choice.mesh = {.replicate = 1, .shard = cluster.cards()};
    if (row.hybrid) choice.mesh = {.replicate = cluster.nodes, .shard = cluster.cards_per_node};
    choices.push_back(choice);
  }
  return choices;
}

}  // namespace vramfit
