#include "job/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// `never` would be shard-grad-op under another name; with embeddings in units of their own, `default` is `always`
// (but FSDP2, as torchtitan calls it, keeps the head's).
// Across nodes, groups of a node's cards gather for backward without the network.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs{job};
  jobs.front().reshard = ReshardByDefault{};
  if (!sharding_named(job.sharding).reshard) return jobs;
  jobs.insert(jobs.begin(), jobs.front());
  jobs.front().reshard = ReshardLastKept{};
  const bool has_root = !job.wrap_embeddings || !std::holds_alternative<WrapLayers>(job.wrap);
  if (has_root || job.runtime != Runtime::vramfit) {
    jobs.push_back(jobs.front());
    jobs.back().reshard = ReshardAlways{};
  }
  const std::int64_t node = space.cluster.cards_per_node;
  if (node > 1 && node < job.mesh.shard && job.mesh.shard % node == 0) {
    jobs.push_back(jobs.front());
    jobs.back().reshard = ReshardGroups{node};
  }
  return jobs;
}

}  // namespace

Dimension reshard() {
  return {.name = "reshard",
          .cost = "a second gather of each unit",
          .fields = {"reshard"},
          .choices = choices,
          .may_contradict = true};
}

}  // namespace vramfit::dimension
