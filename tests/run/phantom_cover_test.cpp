// Predictions for GPUs equal what the executor's CUDA code allocates on phantom ones, event by event, and what
// LibTorch's caching allocator makes of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "estimator/rank_estimate.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/host_bytes.h"
#include "tests/run/phantom_cover.h"
#include "tests/support/shard.h"

namespace vramfit::testing {

namespace {

constexpr std::array<std::uint64_t, 2> kSeeds{20261121, 20261122};
constexpr std::size_t kJobsOfSeed = 120;

/// A cover for each seed, job by job in turn, so that every share has as many of each.
std::vector<PhantomJob> all_jobs() {
  std::vector<PhantomJob> jobs;
  const std::array covers{phantom_cover(kSeeds[0], kJobsOfSeed), phantom_cover(kSeeds[1], kJobsOfSeed)};
  for (std::size_t i = 0; i < std::max(covers[0].size(), covers[1].size()); ++i) {
    for (const std::vector<PhantomJob>& cover : covers) {
      if (i < cover.size()) jobs.push_back(cover[i]);
    }
  }
  return jobs;
}

const PhasePeak* same_phase(const RankEstimate& rank, const PhasePeak& like) {
  const auto found = std::ranges::find_if(
      rank.phases, [&](const PhasePeak& peak) { return peak.phase == like.phase && peak.steady == like.steady; });
  return found == rank.phases.end() ? nullptr : &*found;
}

bool allocates_in(const Ledger& ledger, const PhasePeak& peak) {
  return std::ranges::any_of(ledger.events, [&](const Event& event) {
    return event.phase == peak.phase && (event.step > 1) == peak.steady && event.bytes > 0;
  });
}

/// A prediction lists the phases in which something is allocated or freed, a rehearsal all that it went through.
void check_figures(const RankEstimate& predicted, const RankEstimate& rehearsed, const Ledger& events) {
  CHECK(predicted.peak_requested == rehearsed.peak_requested);
  CHECK(predicted.peak_allocated == rehearsed.peak_allocated);
  CHECK(predicted.peak_reserved == rehearsed.peak_reserved);
  CHECK(rehearsed.alloc_retries == 0);
  for (const PhasePeak& was : rehearsed.phases) {
    CAPTURE(phase_name(was.phase));
    CAPTURE(was.steady);
    const PhasePeak* const said = same_phase(predicted, was);
    CHECK((said != nullptr || !allocates_in(events, was)));
    if (said == nullptr) continue;
    CHECK(said->requested == was.requested);
    CHECK(said->allocated == was.allocated);
    CHECK(said->reserved == was.reserved);
  }
  for (const PhasePeak& said : predicted.phases) {
    CAPTURE(phase_name(said.phase));
    CHECK(same_phase(rehearsed, said) != nullptr);
  }
}

/// The order in which the played card hands out addresses.
Placement placement_of(const PhantomJob& job) {
  const int card = job.rank;  // of one node
  if (job.addresses == "ascending") return {AddressOrder::ascending, address_seed(0, card)};
  if (job.addresses == "descending") return {AddressOrder::descending, address_seed(0, card)};
  const std::uint64_t seed = std::stoull(job.addresses.substr(job.addresses.find(':') + 1));
  return {AddressOrder::shuffled, address_seed(seed, card)};
}

}  // namespace

TEST_CASE(
    "every byte that the executor asks for on phantom GPUs was predicted, and so was what the allocator makes of it") {
  const std::vector<PhantomJob> jobs = all_jobs();
  REQUIRE(jobs.size() >= 200);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (!is_mine(i)) continue;
    const PhantomJob& job = jobs[i];
    CAPTURE(job.name());
    const FinishedRun run = run_on_phantom(job);
    CHECK_MESSAGE(run.exit_code == 0, run.errors);
    if (run.exit_code != 0) continue;
    const RunRecord record = run.record();
    CHECK(record.device == "phantom");
    const Ledger predicted = count_as_run(run, job.rank), events = run.events_of(job.rank);
    const LedgerDifference difference = compare_ledgers(predicted, events);
    CHECK_MESSAGE(difference.equal, difference.first);
    CHECK(difference.compared > 100);
    const program::Program program = program_as_run(run, job.rank);
    CHECK(record.ranks.front().pinned == host_bytes(program));
    CHECK(record.ranks.front().memory.managed == managed_bytes(program));
    CardMemory card(record.cluster.card.memory, std::nullopt, placement_of(job));
    check_figures(fold_on(predicted, allocator_settings(record.job.allocator), card), record.ranks.front().memory,
                  events);
  }
}

TEST_CASE("a rank played alone asks for the bytes that it asks for among all ranks") {
  PhantomJob job{{"llama", 4, {"--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2", "--seq-len", "24"}},
                 "4xH100-80GB",
                 3,
                 "ascending"};
  const FinishedRun alone = run_on_phantom(job), all = run_on_phantom(job, true);
  REQUIRE_MESSAGE(alone.exit_code == 0, alone.errors);
  REQUIRE_MESSAGE(all.exit_code == 0, all.errors);
  const LedgerDifference difference = compare_ledgers(alone.events_of(3), all.events_of(3));
  CHECK_MESSAGE(difference.equal, difference.first);
  REQUIRE(all.record().ranks.size() == 4);
  const RankEstimate one = alone.record().ranks.front().memory;
  const RunRecord together = all.record();
  for (const MeasuredRank& rank : together.ranks) {
    CHECK(rank.memory.peak_allocated == one.peak_allocated);
    CHECK(rank.memory.peak_reserved == one.peak_reserved);
    CHECK(rank.memory.breakdown.outside_allocator == one.breakdown.outside_allocator);
  }
}

}  // namespace vramfit::testing
