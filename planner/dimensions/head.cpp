#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// No choice with chunked loss (head and loss are one segment), with one shard (nothing to gather), or with a head in
// the root's unit (kept with it).
std::vector<Job> choices(const Job& job, const SearchSpace& /*space*/) {
  Job kept = job;
  kept.reshard_head = false;
  const bool is_in_loss = std::holds_alternative<ChunkedLoss>(job.loss);
  if (job.mesh.shard == 1 || is_in_loss || std::holds_alternative<WrapNothing>(job.wrap)) return {kept};
  Job released = job;
  released.reshard_head = true;
  return {kept, released};
}

}  // namespace

Dimension head() {
  return {.name = "reshard_head",
          .cost = "a second gather of the head",
          .fields = {"reshard_head"},
          .choices = choices,
          .open = OpenChoice::reshard_head,
          .is_simple = true,
          .is_fine = true};
}

}  // namespace vramfit::dimension
