#include "job/fields/trained_dtype.h"
#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// Where layers are recomputed and write their gradients in place, the engine may allocate these first, which leaves
// fewer gaps in most jobs, and more in some.
std::vector<Job> orders(const Job& job) {
  const bool recomputes = !std::holds_alternative<NoCheckpointing>(job.checkpointing);
  const bool is_in_place = job.mesh.shard == 1 && job.precision.compute == kept_gradient_dtype(job);
  const bool has_units = !std::holds_alternative<WrapNothing>(job.wrap);  // else all gradients are one unit's
  if (job.allocator != "expandable" || !recomputes || !is_in_place || !has_units) return {job};
  Job first = job;
  first.allocator = "gradients-first";
  return {job, first};
}

// Expandable segments leave fewer gaps than PyTorch's default. The engine has them by default; its arena, which leaves
// none, takes longer to compute for one job than a whole search, and takes part only by its flag.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  if (space.cluster.is_cpu()) return {job};
  if (job.runtime == Runtime::vramfit) return orders(job);
  if (job.allocator != "native") return {job};
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
