#include "planner/search/least_choice.h"

namespace vramfit {

std::optional<LeastOfAll> least_of_all(const Job& job, const PlanRequest& request, Evaluator& evaluator) {
  const bool may_offload = request.cluster.host_memory.n > 0 && !request.is_fixed("offload");
  const bool may_free_gradients =
      job.optimizer_in_backward || (!request.clip && !request.is_fixed("optimizer_in_backward"));
  if (job.runtime != Runtime::vramfit || may_offload || may_free_gradients) return std::nullopt;
  Job least = job;
  if (data_ranks(job) > 1) {
    least.sharding = "full-shard";
    least.mesh = {.replicate = 1, .shard = data_ranks(job)};
    least.reshard = ReshardByDefault{};
  }
  if (!request.is_fixed("wrap")) least.wrap = WrapNothing{};  // padded once
  const OpenChoices open{OpenChoice::micro_batch, OpenChoice::loss};
  const BoundParts parts = evaluator.parts_of(least, open);
  const Bytes total = evaluator.least_total(parts, least, open);
  return LeastOfAll{.total = total, .is_ruled_out = evaluator.is_ruled_out(parts, least, open, total)};
}

}  // namespace vramfit
