// What is predicted for a GPU, held against a real one: every event, what the allocator makes of it, and losses beside
// those of CPU ranks. Skipped unless $VRAMFIT_TEST_CARD names the card that is there (H200-141GB). One JSON line for
// each job goes to the file that $VRAMFIT_CARD_RESULTS names.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "estimator/rank_estimate.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/host_bytes.h"
#include "tests/run/forks.h"
#include "tests/run/phantom_cover.h"
#include "tests/support/shard.h"

namespace vramfit::testing {

namespace {

constexpr std::uint64_t kSeed = 20261129;
constexpr std::size_t kJobs = 160;
constexpr const char* kSteps = "3";

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

FinishedRun run_on(const CoverJob& job, const std::string& gpus, const std::vector<std::string>& flags,
                   const std::string& tokens) {
  static const TrainForks forks(TrainForks::Cards::none);
  const auto directory = std::make_shared<TemporaryDirectory>();
  const std::string place = directory->path().string();
  std::vector<std::string> arguments{forks.vramfit(),
                                     "run",
                                     model_path(job.family),
                                     "--gpus",
                                     gpus,
                                     "--data",
                                     tokens,
                                     "--token-bytes",
                                     "4",
                                     "--steps",
                                     kSteps,
                                     "--threads",
                                     "1",
                                     "--events",
                                     place + "/events",
                                     "-o",
                                     place + "/run.json"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  FinishedRun run = run_program(arguments);
  run.directory = directory;
  run.family = job.family;
  return run;
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

/// The one of a card's address orders with which the replay ends as the card did; "" if none does.
std::string order_of(const Ledger& events, const RunRecord& record, const RankEstimate& was) {
  struct Order {
    const char* name;
    Placement placement;
  };
  const std::array orders{Order{"ascending", {AddressOrder::ascending, address_seed(0, 0)}},
                          Order{"descending", {AddressOrder::descending, address_seed(0, 0)}},
                          Order{"driver", {AddressOrder::driver, address_seed(0, 0)}},
                          Order{"shuffled:1", {AddressOrder::shuffled, address_seed(1, 0)}},
                          Order{"shuffled:2", {AddressOrder::shuffled, address_seed(2, 0)}}};
  for (const Order& order : orders) {
    CardMemory card(record.cluster.card.memory, std::nullopt, order.placement);
    const RankEstimate replayed = fold_on(events, allocator_settings(record.job.allocator), card);
    if (replayed.peak_allocated == was.peak_allocated && replayed.peak_reserved == was.peak_reserved) return order.name;
  }
  return "";
}

struct Line {
  std::string name, kind, difference, order;
  std::size_t compared = 0;
  RankEstimate predicted, measured;
  double loss_distance = 0, last_loss = 0;
  std::string errors;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

void note(const Line& line) {
  const std::string path = variable("VRAMFIT_CARD_RESULTS");
  if (path.empty()) return;
  std::ofstream(path, std::ios::app) << fmt::format(
      R"({{"job": "{}", "kind": "{}", "events": {}, "difference": "{}", "order": "{}", "requested": [{}, {}], )"
      R"("allocated": [{}, {}], "reserved": [{}, {}], "outside_allocator": [{}, {}], "loss_distance": "{:.3g}", )"
      R"("last_loss": "{:.6g}", "errors": "{}"}})"
      "\n",
      escaped(line.name), line.kind, line.compared, escaped(line.difference), line.order,
      line.predicted.peak_requested.n, line.measured.peak_requested.n, line.predicted.peak_allocated.n,
      line.measured.peak_allocated.n, line.predicted.peak_reserved.n, line.measured.peak_reserved.n,
      line.predicted.breakdown.outside_allocator.n, line.measured.breakdown.outside_allocator.n, line.loss_distance,
      line.last_loss, escaped(line.errors));
}

void check_job(const PhantomJob& job, const std::vector<std::string>& more, const std::string& kind) {
  CAPTURE(job.name());
  Line line;
  line.name = job.name();
  line.kind = kind;
  const TemporaryDirectory data;
  const std::string tokens = data.path().string() + "/tokens.bin";
  write_tokens(tokens, vocabulary_of(job.job.family), 20000, 1);
  std::vector<std::string> flags = job.job.flags;
  flags.insert(flags.end(), more.begin(), more.end());
  const FinishedRun run = run_on(job.job, job.gpus, flags, tokens);
  CHECK_MESSAGE(run.exit_code == 0, run.errors);
  if (run.exit_code != 0) {
    line.errors = run.errors;
    return note(line);
  }
  const RunRecord record = run.record();
  const RankEstimate& was = record.ranks.front().memory;
  CHECK(record.device == "cuda");
  const Ledger predicted = count_as_run(run, 0, std::stoi(kSteps)), events = run.events_of(0);
  const LedgerDifference difference = compare_ledgers(predicted, events);
  CHECK_MESSAGE(difference.equal, difference.first);
  CHECK(difference.compared > 100);
  CHECK(record.ranks.front().pinned == host_bytes(program_as_run(run, 0)));
  CardMemory card(record.cluster.card.memory, std::nullopt, {});
  line.predicted = fold_on(predicted, allocator_settings(record.job.allocator), card);
  line.measured = was;
  CHECK(line.predicted.peak_requested == was.peak_requested);
  CHECK(line.predicted.peak_allocated == was.peak_allocated);
  line.order = order_of(predicted, record, was);
  CHECK(line.order == "ascending");
  CHECK(was.alloc_retries == 0);
  const FinishedRun cpu = run_on(job.job, "1xcpu-8GiB", flags_of_cpu(flags), tokens);
  CHECK_MESSAGE(cpu.exit_code == 0, cpu.errors);
  if (cpu.exit_code == 0) {
    const std::string precision = value_of(flags, "--precision");
    line.loss_distance = distance(record.loss, cpu.record().loss, precision.starts_with("fp16"));
    line.last_loss = record.loss.empty() ? 0 : record.loss.back();
    CHECK(line.loss_distance <= tolerance_of(precision));
  }
  line.compared = static_cast<std::size_t>(difference.compared);
  line.difference = difference.equal ? "" : difference.first;
  line.errors = cpu.exit_code == 0 ? "" : cpu.errors;
  note(line);
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
