#include "planner/dimensions/dimensions.h"

namespace vramfit {

// One unit of everything spares a small model the latency of many collectives. Nothing is left for the reshard policy
// to release early, so it is tried with one of them. Units finer than layers transfer less at a time but peak alike.
std::vector<Job> wrap_choices(const Job& job, const SearchSpace& /*space*/) {
  Job layer = job;
  layer.wrap = Wrap::layer;
  if (job.mesh.shard == 1 || job.reshard != Reshard::by_default) return {layer};
  Job none = job;
  none.wrap = Wrap::none;
  return {layer, none};
}

}  // namespace vramfit
