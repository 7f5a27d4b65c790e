#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// A reduction that a block's recomputation doesn't hide may go on behind its backward pass; what is reduced is then
// held beside that block's activations. No choice without recomputation or shards, where both are the same, and without
// prefetch, which saves less memory than this costs.
std::vector<Job> choices(const Job& job, const SearchSpace& /*space*/) {
  Job early = job;
  early.reduce_finish = ReduceFinish::early;
  const bool is_prefetched = job.backward_prefetch != BackwardPrefetch::none;
  const bool is_reduced = job.mesh.shard > 1 && !std::holds_alternative<WrapNothing>(job.wrap);
  if (!is_reduced || !is_prefetched || std::holds_alternative<NoCheckpointing>(job.checkpointing)) return {early};
  Job end = job;
  end.reduce_finish = ReduceFinish::end;
  return {early, end};
}

}  // namespace

Dimension reduce_finish() {
  return {.name = "reduce_finish",
          .cost = "a reduction that only a recomputation hides",
          .fields = {"reduce_finish"},
          .choices = choices,
          .open = OpenChoice::reduce_finish,
          .is_simple = true};
}

}  // namespace vramfit::dimension
