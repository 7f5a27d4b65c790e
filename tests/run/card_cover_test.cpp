// What is predicted for a GPU, held against a real one: every event, what the allocator makes of it, and losses beside
// those of CPU ranks. Skipped unless $VRAMFIT_TEST_CARD names the card that is there (H200-141GB). One JSON line for
// each job goes to the file that $VRAMFIT_CARD_RESULTS names.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/json/json_writer.h"
#include "estimator/rank_estimate.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/host_bytes.h"
#include "tests/run/phantom_cover.h"
#include "tests/support/shard.h"

namespace vramfit::testing {

namespace {

constexpr std::uint64_t kSeed = 20261129;
constexpr std::size_t kJobs = 160;
constexpr int kSteps = 3;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string value_of(const std::vector<std::string>& flags, const std::string& flag) {
  const auto found = std::ranges::find(flags, flag);
  return found == flags.end() || found + 1 == flags.end() ? "" : *(found + 1);
}

/// The flags that CPU ranks have too: these have no caching allocator, one attention, and no managed memory.
std::vector<std::string> flags_of_cpu(const std::vector<std::string>& flags) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i + 1 < flags.size(); i += 2) {
    std::string value = flags[i + 1];
    if (flags[i] == "--allocator" || flags[i] == "--kernels") continue;
    if (flags[i] == "--attention" && value != "math") value = "auto";
    if (flags[i] == "--optimizer") value = value.substr(0, value.find(':'));
    kept.insert(kept.end(), {flags[i], value});
  }
  return kept;
}

FinishedRun run_steps(const std::string& gpus, const CoverJob& job) {
  return run_on(gpus, job, {"--steps", std::to_string(kSteps), "--threads", "1"});
}

/// How far losses are apart, relative to the first of `b`; infinite where they can't be compared. Steps in which
/// neither is finite are passed over if `may_overflow`.
double distance(const std::vector<double>& a, const std::vector<double>& b, bool may_overflow) {
  if (a.size() != b.size() || b.empty() || !std::isfinite(b.front()) || b.front() == 0) return INFINITY;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool both_finite = std::isfinite(a[i]) && std::isfinite(b[i]);
    if (may_overflow && !std::isfinite(a[i]) && !std::isfinite(b[i])) continue;
    most = std::max(most, both_finite ? std::abs(a[i] - b[i]) / std::abs(b.front()) : INFINITY);
  }
  return most;
}

/// Rounding of the dtype that is computed in, over three steps: a few times what an H200 showed, and less than these
/// models' losses move, about 1e-3.
double tolerance_of(const std::string& precision) {
  if (precision == "fp32") return 1e-5;
  return precision == "fp8" ? 2e-3 : 5e-4;
}

/// What became of a job, as its line says.
struct Outcome {
  LedgerDifference events;
  RankEstimate predicted, measured;
  double loss_distance = 0, last_loss = 0;
  std::string errors;
};

void note(const std::string& job, const std::string& kind, const Outcome& outcome) {
  const std::string path = variable("VRAMFIT_CARD_RESULTS");
  if (path.empty()) return;
  JsonWriter line(JsonForm::one_line);
  const auto pair = [&](const char* name, Bytes predicted, Bytes measured) {
    line.key(name).begin_array().integer(predicted.n).integer(measured.n).end_array();
  };
  const RankEstimate &said = outcome.predicted, &was = outcome.measured;
  line.begin_object().member("job", job).member("kind", kind);
  line.member("events", outcome.events.compared).member("difference", outcome.events.first);
  pair("requested", said.peak_requested, was.peak_requested);
  pair("allocated", said.peak_allocated, was.peak_allocated);
  pair("reserved", said.peak_reserved, was.peak_reserved);
  line.member("outside_allocator", was.breakdown.outside_allocator);  // a ledger predicts none
  line.member("loss_distance", outcome.loss_distance).member("last_loss", outcome.last_loss);
  line.member("errors", outcome.errors).end_object();
  std::ofstream(path, std::ios::app) << line.take();
}

/// Of a run that ended well, and a run of the same job on CPU ranks.
void check_run(const FinishedRun& run, const FinishedRun& cpu, const std::string& precision, Outcome& outcome) {
  const RunRecord record = run.record();
  const RankEstimate& was = outcome.measured = record.ranks.front().memory;
  CHECK(record.device == "cuda");
  const Ledger predicted = count_as_run(run, 0, kSteps);
  outcome.events = compare_ledgers(predicted, run.events_of(0));
  CHECK_MESSAGE(outcome.events.equal, outcome.events.first);
  CHECK(outcome.events.compared > 100);
  CHECK(record.ranks.front().pinned == host_bytes(program_as_run(run, 0)));
  CardMemory card(record.cluster.card.memory, std::nullopt, {});  // ascending addresses
  outcome.predicted = fold_on(predicted, allocator_settings(record.job.allocator), card);
  CHECK(outcome.predicted.peak_requested == was.peak_requested);
  CHECK(outcome.predicted.peak_allocated == was.peak_allocated);
  CHECK(outcome.predicted.peak_reserved == was.peak_reserved);
  CHECK(was.alloc_retries == 0);
  CHECK_MESSAGE(cpu.exit_code == 0, cpu.errors);
  if (cpu.exit_code != 0) {
    outcome.errors = cpu.errors;
    return;
  }
  outcome.loss_distance = distance(record.loss, cpu.record().loss, precision.starts_with("fp16"));
  outcome.last_loss = record.loss.empty() ? 0 : record.loss.back();
  CHECK(outcome.loss_distance <= tolerance_of(precision));
}

void check_job(const PhantomJob& drawn, const std::vector<std::string>& more, const std::string& kind) {
  CAPTURE(drawn.name());
  CoverJob job = drawn.job;
  job.flags.insert(job.flags.end(), more.begin(), more.end());
  const FinishedRun run = run_steps(drawn.gpus, job);
  CHECK_MESSAGE(run.exit_code == 0, run.errors);
  Outcome outcome;
  if (run.exit_code == 0) {
    const FinishedRun cpu = run_steps("1xcpu-8GiB", {job.family, job.ranks, flags_of_cpu(job.flags)});
    check_run(run, cpu, value_of(job.flags, "--precision"), outcome);
  } else {
    outcome.errors = run.errors;
  }
  note(drawn.name(), kind, outcome);
}

}  // namespace

TEST_CASE("on a real GPU, every byte is asked for that was predicted, and losses are those of CPU ranks") {
  const std::string name = variable("VRAMFIT_TEST_CARD");
  if (name.empty()) {
    MESSAGE("no GPU is named: VRAMFIT_TEST_CARD=H200-141GB");
    return;
  }
  const std::vector<PhantomJob> jobs = phantom_cover(kSeed, kJobs, {{"1"}, {name}, {"as it comes"}});
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!is_mine(i)) continue;
    check_job(jobs[i], {}, "cover");
    if (has_own_kernels() && i % 3 == 0) check_job(jobs[i], {"--kernels", "vramfit"}, "own kernels");
  }
}

}  // namespace vramfit::testing
