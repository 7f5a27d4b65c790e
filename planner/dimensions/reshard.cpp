#include "job/sharding/sharding.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// `never` would be shard-grad-op under another name; with embeddings in units of their own, `default` is `always`
// (but FSDP2, as torchtitan calls it, keeps the head's).
// Groups of any number of ranks that divides the shards may keep slices and gather for backward among themselves; a
// node's cards do it without the network. DeepSpeed has no such choice.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs{job};
  jobs.front().reshard = ReshardByDefault{};
  if (!sharding_named(job.sharding).reshard || job.runtime == Runtime::deepspeed) return jobs;
  jobs.insert(jobs.begin(), jobs.front());
  jobs.front().reshard = ReshardLastKept{};
  const bool has_root = !job.wrap_embeddings || !is_by_layer(job.wrap);
  if (has_root || job.runtime != Runtime::vramfit) {
    jobs.push_back(jobs.front());
    jobs.back().reshard = ReshardAlways{};
  }
  const std::int64_t node = space.cluster.cards_per_node;
  const auto add_groups = [&](std::int64_t ranks) {
    jobs.push_back(jobs.front());
    jobs.back().reshard = ReshardGroups{ranks};
  };
  const bool has_nodes = node > 1 && node < job.mesh.shard && job.mesh.shard % node == 0;
  if (has_nodes) add_groups(node);
  for (std::int64_t ranks = 2; ranks < job.mesh.shard; ++ranks) {
    if (job.mesh.shard % ranks == 0 && !(has_nodes && ranks == node)) add_groups(ranks);
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
