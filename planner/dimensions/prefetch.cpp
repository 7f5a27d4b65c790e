#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// In backward, the next unit may be gathered before the recomputation too, which hides more and holds it longer; in
// forward, two may be on their way. Without prefetch only one gathered unit lives at a time, and every gather is waited
// for.
std::vector<Job> choices(const Job& job, const SearchSpace& /*space*/) {
  if (job.mesh.shard == 1 || std::holds_alternative<WrapNothing>(job.wrap))
    return {job};  // nothing to gather, or nothing else
  std::vector<Job> jobs{job};
  if (job.runtime != Runtime::vramfit) return jobs;
  const auto add = [&](BackwardPrefetch backward, std::int64_t forward) {
    if (job.backward_prefetch == backward && job.forward_prefetch == forward) return;
    jobs.push_back(job);
    jobs.back().backward_prefetch = backward;
    jobs.back().forward_prefetch = forward;
  };
  add(BackwardPrefetch::pre, 1);
  add(BackwardPrefetch::post, 2);
  add(BackwardPrefetch::none, 1);
  add(BackwardPrefetch::none, 0);
  return jobs;
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
