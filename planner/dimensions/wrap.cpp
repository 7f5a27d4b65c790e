#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// One unit for everything spares a small model the latency of many collectives. It leaves the reshard policy nothing to
// release early, so only one policy is tried. Units finer than layers transfer less at a time but have the same peak.
std::vector<Job> choices(const Job& job, const SearchSpace& /*space*/) {
  Job layer = job;
  layer.wrap = WrapLayers{};
  if (job.mesh.shard == 1 || !std::holds_alternative<ReshardByDefault>(job.reshard)) return {layer};
  Job none = job;
  none.wrap = WrapNothing{};
  return {layer, none};
}

}  // namespace

Dimension wrap() {
  return {.name = "wrap",
          .cost = "one gather that nothing hides",
          .fields = {"wrap", "wrap_embeddings"},
          .choices = choices};
}

}  // namespace vramfit::dimension
