#include "job/sharding/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// Hybrid sharding may split over any number of cards that divides the cluster: few cards gather fast and within a node,
// many hold less each. The other strategies have one mesh. The mesh that gathers within whole nodes comes first. On one
// node that is full sharding, which is a choice of its own unless a person asked for hybrid sharding.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  const std::int64_t cards = space.cluster.cards(), node = space.cluster.cards_per_node;
  const Sharding& sharding = sharding_named(job.sharding);
  const auto with_shards = [&](std::int64_t shards) {
    Job choice = job;
    choice.mesh = {.replicate = cards / shards, .shard = shards};
    return choice;
  };
  if (!sharding.parameters) return {with_shards(1)};
  if (!sharding.hybrid) return {with_shards(cards)};
  std::vector<Job> jobs;
  if (node > 1 && (node < cards || space.is_sharding_set)) jobs.push_back(with_shards(node));
  for (std::int64_t shards = 2; shards < cards; ++shards) {
    if (cards % shards == 0 && shards != node) jobs.push_back(with_shards(shards));
  }
  return jobs;
}

}  // namespace

Dimension mesh() {
  return {.name = "mesh", .cost = "sums over replicas", .fields = {"mesh"}, .choices = choices, .may_contradict = true};
}

}  // namespace vramfit::dimension
