#include "planner/dimensions/dimensions.h"

namespace vramfit {

// Chunked loss runs head and loss as one segment, with one shard there is nothing to gather, and a head that is in the
// root's unit is kept with it: no choice there.
std::vector<Job> head_choices(const Job& job, const SearchSpace& /*space*/) {
  Job kept = job;
  kept.reshard_head = false;
  if (job.mesh.shard == 1 || job.loss == LossKind::chunked || job.wrap == Wrap::none) return {kept};
  Job released = job;
  released.reshard_head = true;
  return {kept, released};
}

}  // namespace vramfit
