#include <algorithm>

#include "planner/dimensions/dimensions.h"

namespace vramfit::dimension {

namespace {

// The global batch stays the same; each data rank's share of it is split into equal micro-batches, the largest first.
std::vector<Job> choices(const Job& job, const SearchSpace& /*space*/) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 20;  // beyond it only powers of two are tried
  const std::int64_t ranks = data_ranks(job);
  if (job.global_batch % ranks != 0) return {};
  const std::int64_t rows = job.global_batch / ranks;
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= std::min<std::int64_t>(rows, 4096); ++size) {
    const bool power_of_two = (size & (size - 1)) == 0;
    if (rows % size == 0 && (rows <= kMostRows || power_of_two)) sizes.push_back(size);
  }
  std::vector<Job> jobs;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    jobs.push_back(job);
    jobs.back().micro_batch = *size;
    jobs.back().accumulation = rows / *size;
  }
  return jobs;
}

}  // namespace

Dimension batch() {
  return {.name = "micro_batch",
          .cost = "more, smaller micro-batches",
          .fields = {"micro_batch", "grad_accum"},
          .choices = choices,
          .open = OpenChoice::micro_batch,
          .may_contradict = true};
}

}  // namespace vramfit::dimension
