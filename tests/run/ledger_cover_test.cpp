// CPU bytes, predicted against counted, over a pairwise cover of the job's axes: every labelled event equal.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "executor/data/data.h"
#include "program/count.h"
#include "program/ledger_diff.h"
#include "tests/run/cover.h"
#include "tests/run/vramfit_run.h"
#include "tests/support/shard.h"

namespace vramfit::testing {

namespace {

constexpr std::uint64_t kSeed = 20260711;
constexpr std::size_t kJobs = 84;

std::int64_t peak_of(const Ledger& ledger) {
  std::int64_t live = 0, peak = 0;
  for (const Event& event : ledger.events) {
    live += event.bytes;
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

TEST_CASE("every event that a run allocates on CPU ranks is the one that was predicted") {
  const std::vector<CoverJob> jobs = cover(kSeed, kJobs);
  REQUIRE(jobs.size() >= 72);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!is_mine(i)) continue;
    const CoverJob& job = jobs[i];
    CAPTURE(job.name());
    const FinishedRun run = run_vramfit(job, {"--steps", "2"});
    REQUIRE_MESSAGE(run.exit_code == 0, run.errors);
    for (int rank = 0; rank < job.ranks; ++rank) {
      CAPTURE(rank);
      const Ledger measured = run.events_of(rank);
      const Ledger predicted = count_as_run(run, rank);
      const LedgerDifference difference = compare_ledgers(predicted, measured);
      CHECK_MESSAGE(difference.equal, difference.first);
      CHECK(difference.compared > 100);
      CHECK(peak_of(measured) == peak_of(predicted));
    }
  }
}

}  // namespace vramfit::testing
