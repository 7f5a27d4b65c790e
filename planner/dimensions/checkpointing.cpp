#include "base/text/units.h"
#include "planner/dimensions/dimensions.h"
#include "program/stages/kept_values.h"
#include "program/stages/offload.h"

namespace vramfit::dimension {

namespace {

// Every Nth block recomputed costs 1/N of a forward pass. Of the Ns that recompute equally many blocks, the smallest is
// tried: its last one is farthest from the end of the forward pass, where all that blocks keep is still there.
// PyTorch's runtimes have one selective policy. Activations that leave the card are those of layers that are
// recomputed: inputs alone, whose copies a layer's work hides. All that layers keep would take longer to copy than to
// compute again.
std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs;
  if (offload_of(job).activations) {
    jobs.push_back(job);
    jobs.back().checkpointing = FullCheckpointing{};
    return jobs;
  }
  const auto add = [&](Checkpointing checkpointing) {
    jobs.push_back(job);
    jobs.back().checkpointing = checkpointing;
  };
  add(NoCheckpointing{});
  if (job.runtime == Runtime::vramfit) {
    for (const KeptPolicy& policy : kept_policies(NoCheckpointing{})) {
      std::visit([&](const auto& kind) { add(kind); }, policy);
    }
  } else {
    add(SelectiveCheckpointing{});
  }
  // An N for each number of blocks that it checkpoints: the engine's are the first and every Nth after it, those of
  // PyTorch's runtimes the Nth of each N.
  const std::int64_t layers = space.spec.num_hidden_layers;
  const bool has_first = job.runtime == Runtime::vramfit;
  for (std::int64_t n = layers; n > 1; --n) {
    const bool is_new = has_first ? ceil_div(layers, n) != ceil_div(layers, n - 1) : layers / n != layers / (n - 1);
    if (is_new) add(EveryNth{n});
  }
  add(FullCheckpointing{});
  return jobs;
}

}  // namespace

Dimension checkpointing() {
  return {.name = "checkpointing",
          .cost = "a second forward pass of each block",
          .fields = {"checkpointing"},
          .choices = choices,
          .open = OpenChoice::checkpointing,
          .is_simple = true};
}

}  // namespace vramfit::dimension
