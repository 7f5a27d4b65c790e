#include "planner/dimensions/dimensions.h"
#include "program/stages/offload.h"

namespace vramfit::dimension {

namespace {

// The same work at about the same time, with the gradients of a unit or two instead of all. No choice where something
// needs all of them at once: clipping, which a step has by default, a scaled loss, a mask, an update by the CPU. That
// it takes one micro-batch a step is told when those are chosen.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  Job at_end = job;
  at_end.optimizer_in_backward = false;
  const bool is_masked = !std::holds_alternative<NoGradientMask>(job.gradient_mask);
  const bool needs_all = space.clip || scales_loss(job) || is_masked || offload_of(job).states;
  if (needs_all || job.runtime != Runtime::vramfit) return {at_end};
  Job in_backward = job;
  in_backward.optimizer_in_backward = true;
  return {at_end, in_backward};
}

}  // namespace

Dimension optimizer_in_backward() {
  return {.name = "optimizer_in_backward",
          .cost = "updates between the passes of backward",
          .fields = {"optimizer_in_backward"},
          .choices = choices};
}

}  // namespace vramfit::dimension
