// The upper bound as a budget: a run within it succeeds, one with 2 % less is refused the bytes, every time.
#include <doctest/doctest.h>

#include <algorithm>

#include "estimator/estimate.h"
#include "model_specs/config.h"
#include "tests/run/cover.h"
#include "tests/run/vramfit_run.h"
#include "tests/support/shard.h"

namespace vramfit::testing {

namespace {

constexpr std::uint64_t kSeed = 20261102;
constexpr std::size_t kJobs = 3;
constexpr int kRepeats = 2;

/// Sizes at which scratch and rounding are small beside the job, as in any job worth a budget.
std::vector<CoverJob> jobs_for_budgets() {
  std::vector<CoverJob> jobs = cover(kSeed, 1);
  jobs.resize(kJobs);
  for (CoverJob& job : jobs) *(std::ranges::find(job.flags, "--seq-len") + 1) = "96";
  return jobs;
}

Bytes upper_bound_of(const FinishedRun& run) {
  const RunRecord record = run.record();
  const ModelSpec spec = parse_config(read_text(model_path(run.family)), run.family);
  const Estimate estimated =
      estimate(spec, record.job, record.cluster, {.suggestions = false, .run = record.effects.value()});
  REQUIRE_MESSAGE(!estimated.ranks.empty(), estimated.why);
  return worst_rank(estimated).upper_bound;
}

}  // namespace

TEST_CASE("a run fits into its predicted upper bound, and not into 98 % of it") {
  const std::vector<CoverJob> jobs = jobs_for_budgets();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!is_mine(i)) continue;
    CAPTURE(jobs[i].name());
    const FinishedRun unlimited = run_vramfit(jobs[i], {"--steps", "2"});
    REQUIRE_MESSAGE(unlimited.exit_code == 0, unlimited.errors);
    const Bytes bound = upper_bound_of(unlimited);
    const FinishedRun within = run_vramfit(jobs[i], {"--steps", "2", "--budget", std::to_string(bound.n)});
    CHECK_MESSAGE(within.exit_code == 0, within.errors);
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const FinishedRun beyond = run_vramfit(jobs[i], {"--steps", "2", "--budget", std::to_string(bound.n * 98 / 100)});
      CHECK(beyond.exit_code == 6);
      CHECK_MESSAGE(beyond.errors.find("largest: ") != std::string::npos, beyond.errors);
    }
  }
}

}  // namespace vramfit::testing
