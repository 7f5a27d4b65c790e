#include "planner/dimensions/dimensions.h"

namespace vramfit {

// Chunked loss runs head and loss as one segment, and with one shard there is nothing to gather: no choice there.
std::vector<Job> head_choices(const Job& job, const SearchSpace& /*space*/) {
  Job kept = job;
  kept.reshard_head = false;
  if (job.mesh.shard == 1 || job.loss == LossKind::chunked) return {kept};
  Job released = job;
  released.reshard_head = true;
  return {kept, released};
}

}  // namespace vramfit
