#include "estimator/allocator/requests.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "estimator/allocator/ledger_player.h"
#include "estimator/rank_estimate.h"
#include "program/lowering/beginning.h"
#include "program/make_program.h"
#include "program/readers/bytes.h"
#include "tests/support/random_jobs.h"

namespace vramfit {
namespace {

using testing::ResolvedJob;

constexpr std::array kAllocators{"expandable", "native", "max_split_size_mb=20",
                                 "expandable_segments=True,roundup_power2_divisions=4",
                                 "garbage_collection_threshold=0.5,per_process_memory_fraction=0.9"};

program::Program program_of(const ResolvedJob& drawn, const Job& job, bool labels) {
  return program::make_program({.graph = drawn.graph,
                                .job = job,
                                .device = drawn.cluster.card.device,
                                .coords = {},
                                .run = {.clip = drawn.clip},
                                .labels = labels});
}

bool are_alike(const Event& a, const Event& b) {
  return a.bytes == b.bytes && a.category == b.category && a.phase == b.phase && a.step == b.step &&
         a.stream == b.stream;
}

/// Events with names, a last micro-batch that does what the one before did counted among the middle ones.
Ledger named_events(program::Program program) {
  program.sections = merged_sections(program);
  return ledger_of(program, {});
}

/// Names apart, both say the same; a buffer that is freed is the one that was allocated.
std::string difference_of(const Ledger& requests, const Ledger& named) {
  if (requests.events.size() != named.events.size()) return "another number of events";
  std::map<std::int64_t, std::int64_t> ids;
  for (std::size_t i = 0; i < named.events.size(); ++i) {
    const Event &request = requests.events[i], &event = named.events[i];
    if (!are_alike(request, event)) return fmt::format("event {} is another one", i);
    if (event.bytes > 0) ids[request.id] = event.id;
    // Before a repeat's first pass there was another, which made what this one frees under an id of its own.
    if (event.bytes < 0 && ids[request.id] != event.id) return fmt::format("event {} frees another block", i);
  }
  const auto same = [](const Repeat& a, const Repeat& b) {
    return a.begin == b.begin && a.end == b.end && a.times == b.times;
  };
  return std::ranges::equal(requests.repeats, named.repeats, same) ? "" : "other repeats";
}

std::string figures_of(const RankEstimate& rank) {
  std::string text = fmt::format("{} {} {} {} {}", rank.peak_requested.n, rank.peak_allocated.n, rank.peak_reserved.n,
                                 rank.least_reserved.n, rank.reserved_grows);
  for (const Bytes& bytes : rank.breakdown.categories) text += fmt::format(" {}", bytes.n);
  text += fmt::format(" {} {}", rank.breakdown.rounding.n, rank.breakdown.fragmentation.n);
  for (const PhasePeak& phase : rank.phases) {
    text += fmt::format("; {} {} {} {} {}", phase_name(phase.phase), phase.steady, phase.requested.n, phase.allocated.n,
                        phase.reserved.n);
  }
  return text;
}

struct Replayed {
  Playback played;
  AllocatorStats stats;
};

Replayed replayed(const Ledger& ledger, const AllocatorSettings& settings, Bytes room) {
  CardMemory card(80 * kGiB, room, {});
  LedgerReplay replay(settings, card);
  PlayedOrders orders;
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  Replayed result;
  result.played =
      LedgerPlayer(ledger, parts, replay, orders).play([&](const Event& event) { return replay.add(event); });
  result.stats = replay.stats();
  return result;
}

/// Against every micro-batch and step played one by one, up to a step after the last that was played here.
std::string difference_from_all(const program::Program& program, const Ledger& requests,
                                const AllocatorSettings& settings, Bytes room) {
  const Replayed some = replayed(requests, settings, room);
  if (some.played.out_of_memory || !some.played.settled) return "";
  const int steps = static_cast<int>(some.played.steps) + 2;
  const Replayed all = replayed(ledger_of(program, {.steps = steps, .abbreviate = false}), settings, room);
  if (all.played.out_of_memory) return "runs out of memory only where every step is played";
  if (some.stats.reserved.peak != all.stats.reserved.peak) {
    return fmt::format("{} bytes reserved instead of {}", some.stats.reserved.peak, all.stats.reserved.peak);
  }
  return some.stats.allocated.peak == all.stats.allocated.peak ? "" : "another peak of what is allocated";
}

std::string what_is_wrong(const ResolvedJob& drawn, std::int64_t accumulation) {
  Job job = drawn.job;
  job.accumulation = accumulation;
  const program::Program program = program_of(drawn, job, true);
  if (!has_requests(program)) return "";
  const Ledger requests = requests_of(program_of(drawn, job, false), 2), named = named_events(program);
  if (const std::string difference = difference_of(requests, named); !difference.empty()) return difference;
  const Device& device = drawn.cluster.card.device;
  if (device.kind != DeviceKind::cuda) return "";
  for (const char* allocator : kAllocators) {
    job.allocator = allocator;
    const RankEstimate rank = fold(requests, job, device);
    const std::string expected = figures_of(fold(named, job, device)), got = figures_of(rank);
    if (got != expected) return fmt::format("{}: {} instead of {}", allocator, got, expected);
    const AllocatorSettings settings = allocator_settings(allocator);
    for (const std::int64_t percent : {60, 85, 200}) {
      const Bytes room{rank.peak_reserved.n / 100 * percent};
      const std::string difference = difference_from_all(program, requests, settings, room);
      if (!difference.empty()) return fmt::format("{}, {} %: {}", allocator, percent, difference);
    }
  }
  return "";
}

/// Numbers of buffers may be others.
std::string difference_from_beginning(const Ledger& whole, const Ledger& beginning) {
  if (beginning.events.size() > whole.events.size()) return "the beginning is longer";
  std::map<std::int64_t, std::int64_t> ids;
  for (std::size_t i = 0; i < beginning.events.size(); ++i) {
    const Event &first = beginning.events[i], &event = whole.events[i];
    if (!are_alike(first, event)) return fmt::format("event {} is another one", i);
    if (event.bytes > 0) ids[first.id] = event.id;
    if (event.bytes < 0 && ids[first.id] != event.id) return fmt::format("event {} frees another block", i);
  }
  return "";
}

void try_jobs(int jobs, std::uint64_t first_seed) {
  std::int64_t next = 0;
  const testing::Trial trial = testing::try_random_jobs(jobs, first_seed, [&](const ResolvedJob& drawn) {
    for (const std::int64_t accumulation : {drawn.job.accumulation, std::int64_t{2}, 8 + next++ % 23}) {
      const std::string wrong = what_is_wrong(drawn, accumulation);
      if (!wrong.empty()) return fmt::format("{} micro-batches: {}", accumulation, wrong);
    }
    return std::string();
  });
  MESSAGE(trial.jobs << " jobs, " << trial.refused << " more refused");
  CHECK(trial.failure == "");
}

}  // namespace

TEST_CASE("requests are a ledger's events without names, and their shortened replay gives the figures of all steps") {
  try_jobs(20, 500);
}

TEST_CASE("a program without calls asks for what the whole one does, also where a run saves") {
  const testing::Trial trial = testing::try_random_jobs(40, 1300, [](const ResolvedJob& drawn) -> std::string {
    for (const bool saves : {false, true}) {
      const RunEffects run{.clip = drawn.clip, .saves = saves, .saves_full = saves};
      const auto asked_for = [&](bool calls) {
        const program::Program program = program::make_program({.graph = drawn.graph,
                                                                .job = drawn.job,
                                                                .device = drawn.cluster.card.device,
                                                                .coords = {},
                                                                .run = run,
                                                                .labels = false,
                                                                .calls = calls});
        Ledger ledger = events_of(program, {.run = run});
        for (Event& event : ledger.events) {  // marks, which say where a phase and a step begin, are left out
          event.phase = Phase::load;
          event.step = 0;
        }
        return ledger;
      };
      const std::string difference = difference_of(asked_for(false), asked_for(true));
      if (!difference.empty()) return fmt::format("saving {}: {}", saves, difference);
    }
    return "";
  });
  CHECK(trial.failure == "");
}

TEST_CASE("a program's beginning asks for what the program asks for until then") {
  int shorter = 0;
  const testing::Trial trial = testing::try_random_jobs(60, 900, [&](const ResolvedJob& drawn) -> std::string {
    if (drawn.job.runtime != Runtime::vramfit) return "";
    const program::Program whole = program_of(drawn, drawn.job, false);
    if (!has_requests(whole)) return "";
    const Ledger requests = requests_of(whole, 1);
    for (const std::size_t passes : {1, 2, 1000}) {
      const Ledger beginning = requests_of(program::lower_beginning({.graph = drawn.graph,
                                                                     .job = drawn.job,
                                                                     .device = drawn.cluster.card.device,
                                                                     .coords = {},
                                                                     .run = {.clip = drawn.clip},
                                                                     .labels = false},
                                                                    passes),
                                           1);
      const std::string difference = difference_from_beginning(requests, beginning);
      if (!difference.empty()) return fmt::format("{} backward passes: {}", passes, difference);
      if (passes == 1 && 4 * beginning.events.size() < 3 * requests.events.size()) ++shorter;
    }
    return "";
  });
  CHECK(trial.failure == "");
  CHECK(shorter > 10);
}

TEST_SUITE("full") {
  TEST_CASE("requests of 1,000 random jobs, replayed under every kind of allocator setting") {
    try_jobs(1000, 300'000);
  }
}

}  // namespace vramfit
