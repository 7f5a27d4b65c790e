#include <utility>

#include "estimator/time/kernels.h"
#include "planner/dimensions/dimensions.h"
#include "program/program.h"

namespace vramfit::dimension {

namespace {

/// Whether a gather of one layer takes time that isn't in proportion to its bytes, which is all that groups may gain.
bool has_latency(const Job& job, const SearchSpace& space) {
  constexpr double kLeast = 0.02;  // of its time
  const WorkTimer timer(space.cluster, space.efficiency);
  const program::Group group = program::groups_of(job.mesh, 0)[static_cast<std::size_t>(program::Axis::shard)];
  const auto ticks_of = [&](Bytes bytes) {
    return timer.of(
        {.collective = program::Collective::all_gather, .axis = program::Axis::shard, .accesses = {}, .bytes = bytes},
        group);
  };
  return ticks_of({}) >= kLeast * ticks_of(space.layer_bytes(job));
}

// Groups of layers, and one unit for everything, spare a small model the latency of many gathers. The latter leaves the
// reshard policy nothing to release early, so only one policy is tried. Units finer than layers transfer less at a time
// but have the same peak.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs;
  const auto add = [&](Wrap wrap) {
    jobs.push_back(job);
    jobs.back().wrap = std::move(wrap);
  };
  add(WrapLayers{});
  if (job.mesh.shard == 1) return jobs;
  const bool has_groups = job.runtime == Runtime::vramfit && has_latency(job, space);
  for (const std::int64_t layers : {2, 4}) {
    if (has_groups && layers < space.spec.num_hidden_layers) add(WrapGroups{layers});
  }
  if (std::holds_alternative<ReshardByDefault>(job.reshard)) add(WrapNothing{});
  return jobs;
}

}  // namespace

Dimension wrap() {
  return {.name = "wrap",
          .cost = "one gather that nothing hides",
          .fields = {"wrap", "wrap_embeddings"},
          .choices = choices};
}

}  // namespace vramfit::dimension
