#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// Without prefetch only one gathered unit lives at a time, and every gather is waited for.
std::vector<Job> choices(const Job& job, const SearchSpace& /*space*/) {
  if (job.mesh.shard == 1 || std::holds_alternative<WrapNothing>(job.wrap))
    return {job};  // nothing to gather, or nothing else
  Job none = job;
  none.backward_prefetch = BackwardPrefetch::none;
  none.forward_prefetch = 0;
  return {job, none};
}

}  // namespace

Dimension prefetch() {
  return {.name = "prefetch",
          .cost = "gathers that nothing hides",
          .fields = {"prefetch"},
          .choices = choices,
          .open = OpenChoice::prefetch,
          .is_simple = true};
}

}  // namespace vramfit::dimension
