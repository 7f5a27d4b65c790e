// Other clusters of the same GPUs: a larger one that has a plan, where the one that was asked about has none, and a
// part of it that is faster alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "planner/plan.h"
#include "planner/search/model_stages.h"

namespace vramfit {

inline constexpr std::int64_t kMostNodes = 64;  // of a larger cluster

/// The smallest of those with 2, 4 or 8 GPUs in a node and then 2, 4, ... 64 nodes that holds the job, or else one with
/// the changes that are allowed. `asked` isn't
/// resolved: defaults, such as the global batch, are those of the larger cluster. Sizes that the job can't have (its
/// batch doesn't divide among the ranks) are left out. None for CPU ranks. `model`: of any search for the same
/// model, adapters and kind of GPU.
std::optional<OtherCluster> larger_cluster(const PlanRequest& asked, const std::shared_ptr<ModelStages>& model);

/// What a job needs on the same cluster if its nodes have as much host memory as is wanted: the fastest that fits, of
/// configurations that are alike only one looked at.
struct OffloadedPlan {
  Job job;
  Bytes host;   // of a node
  Bytes total;  // of the worst rank
  double tokens_per_second = 0;
  std::vector<std::string> needs;  // as a change has them
};
/// Whether the runtime could move something to the host, with as much memory as it takes. `request` is resolved.
bool could_offload(const PlanRequest& request);
/// As a plan would answer; then, of what is allowed, that with the least host memory if it needs less than half as
/// much. None where host memory is all there is, where --offload is set, and where the runtime has no rules for it.
/// Where host memory is stated, it is more than that.
std::vector<OffloadedPlan> with_host_memory(const PlanRequest& asked, const std::shared_ptr<ModelStages>& model);
/// With a last resort that isn't allowed: that with the least host memory, if it needs less than half of `host`. Of the
/// engine alone: other runtimes are walked through, which takes too long.
std::optional<OffloadedPlan> with_less_host_memory(const PlanRequest& asked, Bytes host,
                                                   const std::shared_ptr<ModelStages>& model);

/// Of a half of the cluster, half of that and so on: the last one up to which each is faster by more than kLeastGain
/// than the one before and than `tokens_per_second`, if the first is. Small jobs wait for links longer than more GPUs
/// save. None for CPU ranks and other runtimes than the engine. Of the counts bounds grow.
std::optional<OtherCluster> smaller_cluster(const PlanRequest& asked, double tokens_per_second, SearchCounts& counts,
                                            const std::shared_ptr<ModelStages>& model);

}  // namespace vramfit
