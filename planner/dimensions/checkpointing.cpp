#include <array>

#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// PyTorch's selective policy keeps every second matrix product. Every Nth block recomputed costs 1/N of a forward pass.
// Larger N than 8 are left out: they recompute, and save, little more than nothing.
constexpr std::array<std::int64_t, 5> kEvery{8, 6, 4, 3, 2};

std::vector<Job> choices(const Job& job, const SearchSpace& space) {
  std::vector<Job> jobs;
  const auto add = [&](Checkpointing checkpointing, std::int64_t every) {
    jobs.push_back(job);
    jobs.back().checkpointing = checkpointing;
    jobs.back().checkpoint_every = every;
  };
  add(Checkpointing::none, 1);
  if (job.runtime != Runtime::vramfit) add(Checkpointing::selective, 1);
  for (const std::int64_t every : kEvery) {
    if (every < space.spec.num_hidden_layers) add(Checkpointing::every, every);
  }
  add(Checkpointing::full, 1);
  return jobs;
}

}  // namespace

Dimension checkpointing() {
  return {.name = "checkpointing",
          .cost = "a second forward pass of each block",
          .fields = {"checkpointing"},
          .choices = choices};
}

}  // namespace vramfit::dimension
