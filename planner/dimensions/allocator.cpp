#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// Expandable segments leave fewer gaps than PyTorch's default. The engine has them by default; its arena, which leaves
// none, takes longer to compute for one job than a whole search, and takes part only by its flag.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  if (job.runtime == Runtime::vramfit || space.cluster.is_cpu() || job.allocator != "native") return {job};
  Job expandable = job;
  expandable.allocator = "expandable";
  return {job, expandable};
}

}  // namespace

Dimension allocator() {
  return {.name = "allocator",
          .cost = "calls of the driver while segments grow",
          .fields = {"allocator"},
          .choices = choices,
          .only_fragments = true};
}

}  // namespace vramfit::dimension
