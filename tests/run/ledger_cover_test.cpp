// CPU bytes, predicted against counted, over a pairwise cover of the job's axes: every labelled event equal.
#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "estimator/rank_estimate.h"
#include "executor/data/data.h"
#include "model_specs/config.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/count.h"
#include "program/readers/host_bytes.h"
#include "program/stages/adapters.h"
#include "tests/run/cover.h"
#include "tests/run/vramfit_run.h"
#include "tests/support/paths.h"
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

/// A full save gathers on the device; a sharded one is a copy in memory that the host has had from load on.
void check_rank(const FinishedRun& run, int rank, const Ledger& measured, int steps, bool is_full) {
  CAPTURE(rank);
  const LedgerDifference difference = compare_ledgers(count_as_run(run, rank, steps), measured);
  CHECK_MESSAGE(difference.equal, difference.first);
  CHECK(difference.compared > 100);
  CHECK(run.record().ranks.at(static_cast<std::size_t>(rank)).host == host_bytes(program_as_run(run, rank)));
  CHECK((measured.events.back().phase == Phase::checkpoint_save) == is_full);
}

/// As if its steps were counted from 1, as those of a run that doesn't go on after `done` steps.
Ledger renumbered(Ledger ledger, std::int32_t done) {
  for (Event& event : ledger.events) {
    if (event.step > 0) event.step -= done;
  }
  return ledger;
}

/// Families, and flags with their values, but for those of which a job has one of its own.
std::set<std::string> choices_of(const CoverJob& job) {
  std::set<std::string> choices{job.family, std::to_string(job.ranks)};
  for (std::size_t i = 0; i + 1 < job.flags.size(); i += 2) {
    const std::string& flag = job.flags[i];
    if (flag != "--seq-len" && flag != "--mesh" && flag != "--loss-chunk")
      choices.insert(flag + " " + job.flags[i + 1]);
  }
  return choices;
}

}  // namespace

TEST_CASE("the third of the jobs that CI runs has every value of every axis") {
  if (!is_mine(0)) return;
  const std::vector<CoverJob> jobs = cover(kSeed, kJobs);
  std::set<std::string> missing, there;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    missing.merge(choices_of(jobs[i]));
    if (is_mine(i)) there.merge(choices_of(jobs[i]));
  }
  for (const std::string& choice : there) missing.erase(choice);
  CHECK_MESSAGE(missing.empty(), fmt::format("{}", fmt::join(missing, ", ")));
}

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

/// Saves every second step of four, forgets the last and goes on.
void check_saving(const CoverJob& job, const std::vector<std::string>& kinds, const std::string& saved) {
  std::vector<std::string> saves{"--steps", "4", "--seq-len", "16", "--save-every", "2", "--save", saved};
  saves.insert(saves.end(), kinds.begin(), kinds.end());
  std::vector<std::string> resumes = saves;
  resumes.insert(resumes.end(), {"--resume", saved});
  const bool is_full = !kinds.empty();
  const FinishedRun first = run_vramfit(job, saves);
  REQUIRE_MESSAGE(first.exit_code == 0, first.errors);
  for (int rank = 0; rank < job.ranks; ++rank) check_rank(first, rank, first.events_of(rank), 4, is_full);
  std::filesystem::remove_all(saved + "/step-00000004");
  const FinishedRun second = run_vramfit(job, resumes);
  REQUIRE_MESSAGE(second.exit_code == 0, second.errors);
  CHECK(second.record().effects->resumes);
  for (int rank = 0; rank < job.ranks; ++rank) {
    check_rank(second, rank, renumbered(second.events_of(rank), 2), 2, is_full);
  }
}

TEST_CASE("both kinds of save, and resuming, allocate on the device and on the host what was predicted") {
  if (!is_mine(0)) return;
  const TemporaryDirectory directory;
  const std::string saved = directory.path().string() + "/saved", full = directory.path().string() + "/full";
  const std::vector<std::string> hybrid{"--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2"};
  CoverJob whole{"llama", 4, hybrid}, coded{"llama", 4, hybrid};
  whole.flags.insert(whole.flags.end(), {"--load", "rank0"});
  coded.flags.insert(coded.flags.end(), {"--method", "qlora", "--lora-rank", "3", "--optimizer", "adamw-fp8"});
  check_saving(whole, {"--save-full", full}, saved);
  check_saving(coded, {}, directory.path().string() + "/codes");
}

TEST_CASE("the peaks of phases are those that were predicted, where an update works on copies of masters") {
  if (!is_mine(0)) return;
  for (const std::string dtype : {"fp32", "fp16"}) {
    CAPTURE(dtype);
    CoverJob job{"llama", 2, {"--sharding", "full-shard"}};
    if (dtype == "fp16") job.flags.insert(job.flags.end(), {"--master-dtype", dtype, "--gradient-dtype", "fp8"});
    const FinishedRun run = run_vramfit(job, {"--steps", "2"});
    REQUIRE_MESSAGE(run.exit_code == 0, run.errors);
    const RunRecord record = run.record();
    const Graph graph = training_graph(parse_config(read_text(model_path(run.family)), run.family), record.job);
    const RankEstimate predicted =
        estimate_program(program_as_run(run, 0), graph, record.job, record.cluster, {.run = record.effects.value()});
    std::size_t compared = 0;
    for (const PhasePeak& was : record.ranks.front().memory.phases) {
      CAPTURE(phase_name(was.phase));
      const auto said = std::ranges::find_if(
          predicted.phases, [&](const PhasePeak& p) { return p.phase == was.phase && p.steady == was.steady; });
      if (said == predicted.phases.end()) continue;
      CHECK(said->requested == was.requested);
      ++compared;
    }
    CHECK(compared >= 6);
  }
}

}  // namespace vramfit::testing
