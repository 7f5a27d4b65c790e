// What holds for the program of every job, tried on jobs drawn at random.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "estimator/rank_estimate.h"
#include "program/make_program.h"
#include "program/readers/bytes.h"
#include "program/readers/check.h"
#include "program/readers/peaks.h"
#include "tests/support/random_jobs.h"
#include "tests/support/summed_peaks.h"

namespace vramfit {
namespace {

using testing::ResolvedJob;

constexpr Bytes kGranule{512};

program::Program program_of(const ResolvedJob& drawn) {
  return program::make_program({.graph = drawn.graph,
                                .job = drawn.job,
                                .device = drawn.cluster.card.device,
                                .coords = {},
                                .run = {.clip = drawn.clip}});
}

/// Folded peaks are what the events add up to, with each micro-batch and run written out too; what the allocator
/// allocates without fragments is the same, and it reserves no less.
std::string unequal_peaks(const ResolvedJob& drawn, const program::Program& program) {
  const FoldedPeaks folded = folded_peaks(program, kGranule);
  const Ledger all = ledger_of(program, {.steps = 2, .abbreviate = false});
  if (const std::string difference = testing::difference_of(folded, testing::summed_peaks(all, kGranule));
      !difference.empty())
    return difference;
  if (drawn.cluster.is_cpu()) return "";
  CardMemory card({AddressOrder::ascending, 0});
  const RankEstimate replayed = fold_on(ledger_of(program, {}), allocator_settings(drawn.job.allocator), card);
  if (replayed.peak_reserved < folded.rounded) {
    return fmt::format("{} bytes are reserved, less than the folded {}", replayed.peak_reserved.n, folded.rounded.n);
  }
  return "";
}

std::string what_is_wrong(const ResolvedJob& drawn) {
  const program::Program program = program_of(drawn);
  if (const auto fault = program::fault_of(program)) return "unsound: " + *fault;
  return unequal_peaks(drawn, program);
}

void try_jobs(int jobs, std::uint64_t first_seed) {
  const testing::Trial trial = testing::try_random_jobs(jobs, first_seed, what_is_wrong);
  MESSAGE(trial.jobs << " jobs, " << trial.refused << " more refused");
  CHECK(trial.failure == "");
}

}  // namespace

TEST_CASE("programs of random jobs are sound, and their folded peaks are what their events add up to") {
  try_jobs(200, 1);
}

TEST_CASE("a job that fails is shown with no more than what makes it fail") {
  const testing::Trial trial = testing::try_random_jobs(1000, 1, [](const ResolvedJob& drawn) {
    const bool is_full = std::holds_alternative<FullCheckpointing>(drawn.job.checkpointing);
    return drawn.job.accumulation > 2 && is_full ? "too much" : "";
  });
  CHECK(trial.failure.find("too much\n  job: llama/1 1x1 cpu:1:1 checkpointing=full grad_accum=3\n  flags: ") == 0);
}

TEST_SUITE("full") {
  TEST_CASE("programs of 2,000 random jobs are sound, and their folded peaks are what their events add up to") {
    try_jobs(2000, 100'000);
  }
}

}  // namespace vramfit
