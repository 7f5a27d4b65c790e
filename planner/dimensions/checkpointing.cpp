#include <array>

#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// PyTorch's selective policy keeps every second matrix product. Every Nth block recomputed costs 1/N of a forward pass.
// Larger N than 8 are left out: they recompute, and save, little more than nothing.
constexpr std::array<std::int64_t, 5> kEvery{8, 6, 4, 3, 2};

std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs;
  const auto add = [&](Checkpointing checkpointing) {
    jobs.push_back(job);
    jobs.back().checkpointing = checkpointing;
  };
  add(NoCheckpointing{});
  if (job.runtime != Runtime::vramfit) add(SelectiveCheckpointing{});
  for (const std::int64_t n : kEvery) {
    if (n < space.spec.num_hidden_layers) add(EveryNth{n});
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
