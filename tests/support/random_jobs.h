// Jobs drawn at random over families, sizes and all fields of both runtimes, for properties that every job must have.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/support/job_line.h"

namespace vramfit::testing {

/// The same job for the same seed. One in six is for a runtime of PyTorch's. Some are refused.
JobLine draw_job(std::uint64_t seed);

/// What is wrong with a job; "" if nothing.
using Property = std::function<std::string(const ResolvedJob&)>;

struct Trial {
  int jobs = 0, refused = 0;
  std::string failure;  // what is wrong with the smallest job found that fails, its line and its flags
};

/// Tries jobs from seed `first_seed` on, of which `jobs` are not refused; those of other shards are left out
/// (tests/support/shard.h). Ends at the first job that lacks the property, after making it as small as it stays wrong.
Trial try_random_jobs(int jobs, std::uint64_t first_seed, const Property& property);

/// The line with as few settings, ranks and layers as `fails` still holds for: each is left out or made smaller in
/// turn, until no single change keeps the failure.
JobLine smallest_failing(JobLine line, const std::function<bool(const JobLine&)>& fails);

}  // namespace vramfit::testing
