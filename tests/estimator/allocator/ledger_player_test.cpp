#include "estimator/allocator/ledger_player.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>

#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/resolve_job.h"
#include "program/readers/count.h"
#include "tests/support/config_file.h"

namespace vramfit {

namespace {

/// A pass of random blocks, all freed in it but one, which takes the place of the one that it found.
struct Pass {
  struct Step {
    bool is_malloc = false;
    std::int64_t slot = 0, bytes = 0;
  };
  std::vector<Step> steps;
};

constexpr std::int64_t kKept = 0;  // the slot that lives from pass to pass
constexpr std::int64_t kKeptBytes = 24 * kMiB.n;

Pass random_pass(std::mt19937_64& random) {
  Pass pass;
  std::vector<std::int64_t> live;
  std::int64_t next = kKept + 1;
  for (int i = 0; i < 40; ++i) {
    if (live.size() > 5 || (!live.empty() && random() % 2 == 0)) {
      const auto which = static_cast<std::ptrdiff_t>(random() % live.size());
      pass.steps.push_back({.slot = live[static_cast<std::size_t>(which)]});
      live.erase(live.begin() + which);
    } else {
      const auto mebibytes = static_cast<std::int64_t>(1 + random() % 60);
      pass.steps.push_back({.is_malloc = true, .slot = next, .bytes = mebibytes * kMiB.n});
      live.push_back(next++);
    }
    if (i == 20) pass.steps.insert(pass.steps.end(), {{.slot = kKept}, {true, kKept, kKeptBytes}});
  }
  for (const std::int64_t slot : live) pass.steps.push_back({.slot = slot});
  return pass;
}

/// Load, `outer` steps of a first pass and `inner` second ones, and an end.
struct Story {
  Pass first, second;
  std::int64_t inner = 1, outer = 1;
};

class Writer {
 public:
  Ledger write(const Story& story, bool abbreviated) {
    add({true, kKept, kKeptBytes});
    if (abbreviated) writer_.begin_repeat(story.outer);
    for (std::int64_t o = 0; o < (abbreviated ? 1 : story.outer); ++o) {
      run(story.first);
      if (abbreviated) writer_.begin_repeat(story.inner);
      for (std::int64_t i = 0; i < (abbreviated ? 1 : story.inner); ++i) run(story.second);
      if (abbreviated) writer_.end_repeat();
    }
    if (abbreviated) writer_.end_repeat();
    add({.slot = kKept});
    run({{{true, 1, 90 * kMiB.n}, {.slot = 1}}});
    return writer_.take();
  }

  /// Load, and a step that is the last thing in the ledger; or as many of them as a player would try.
  Ledger write_steps(const Pass& step, bool abbreviated) {
    for (const Pass::Step& each : step.steps) {
      if (each.is_malloc && each.slot <= kKept) add(each);
    }
    if (abbreviated) writer_.begin_repeat(kForever);
    for (std::int64_t pass = 0; pass < (abbreviated ? 1 : kMostPasses); ++pass) run(step);
    if (abbreviated) writer_.end_repeat();
    return writer_.take();
  }

 private:
  void run(const Pass& pass) {
    for (const Pass::Step& step : pass.steps) add(step);
  }
  void add(const Pass::Step& step) {
    if (step.is_malloc) {
      ids_[step.slot] = writer_.allocate({step.bytes}, Category::activations, writer_.label("x"));
    } else {
      writer_.free(ids_[step.slot]);
    }
  }
  LedgerWriter writer_;
  std::map<std::int64_t, std::int64_t> ids_;
};

struct Outcome {
  Playback played;
  AllocatorStats stats;
};

Outcome play(const Ledger& ledger, const AllocatorSettings& settings, CardMemory& card) {
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  LedgerReplay replay(settings, card);
  Outcome outcome;
  PlayedOrders orders;
  outcome.played =
      LedgerPlayer(ledger, parts, replay, orders).play([&](const Event& event) { return replay.add(event); });
  outcome.stats = replay.stats();
  return outcome;
}

void check_equal(const Outcome& shortened, const Outcome& whole) {
  CHECK(shortened.played.out_of_memory == whole.played.out_of_memory);
  CHECK(shortened.played.retries == whole.played.retries);
  CHECK(shortened.stats.reserved == whole.stats.reserved);
  CHECK(shortened.stats.allocated == whole.stats.allocated);
  CHECK(shortened.stats.requested == whole.stats.requested);
}

}  // namespace

TEST_CASE("what is played of a repeat gives the figures, retries and end of all its passes") {
  std::mt19937_64 random(5);
  int settled = 0, retried = 0, ended = 0;
  for (int round = 0; round < 120; ++round) {
    CAPTURE(round);
    const Story story{random_pass(random), random_pass(random), 2 + round % 7, 1 + 40 * (round % 3)};
    const Ledger shortened = Writer().write(story, true), whole = Writer().write(story, false);
    CHECK(shortened.events.size() < whole.events.size());
    AllocatorSettings settings;
    settings.expandable_segments = round % 2 == 0;
    if (round % 4 == 1) settings.max_split = 32 * kMiB;
    const Bytes room = (round % 5 == 0 ? 4000 : 240 + 10 * (round % 9)) * kMiB;
    const Placement placement{round % 3 == 0 ? AddressOrder::descending : AddressOrder::ascending, 0};
    CardMemory one(kGiB, room, placement), other(kGiB, room, placement);
    const Outcome played = play(shortened, settings, one), expected = play(whole, settings, other);
    if (!played.played.settled) continue;
    check_equal(played, expected);
    ++settled;
    retried += expected.played.retries > 2 ? 1 : 0;
    ended += expected.played.out_of_memory ? 1 : 0;
  }
  CHECK(settled > 100);
  CHECK(retried > 10);
  CHECK(ended > 3);
}

TEST_CASE("where large blocks come to rest before small ones do, the figures are those of all steps") {
  std::mt19937_64 random(11);
  int settled = 0;
  for (int round = 0; round < 80; ++round) {
    CAPTURE(round);
    // Each step replaces some small blocks that it finds, which then move on from step to step.
    Pass step = random_pass(random);
    const auto is_kept = [](const Pass::Step& each) { return each.slot == kKept; };
    std::erase_if(step.steps, is_kept);
    if (round % 3 == 0) {  // a large block that is gone for a while
      const auto freed = static_cast<std::ptrdiff_t>(random() % step.steps.size());
      step.steps.insert(step.steps.begin() + freed, {.slot = kKept});
      const auto behind = static_cast<std::ptrdiff_t>(random() % (step.steps.size() - freed));
      step.steps.insert(step.steps.begin() + freed + 1 + behind, {true, kKept, kKeptBytes});
    }
    for (std::int64_t small = 0; small < 4; ++small) {
      const auto place = [&] { return step.steps.begin() + static_cast<std::ptrdiff_t>(random() % step.steps.size()); };
      const auto bytes = static_cast<std::int64_t>(1 + random() % 1024) * 1024;
      auto there = step.steps.insert(place(), {.is_malloc = true, .slot = -1 - small, .bytes = bytes});
      step.steps.insert(there, {.slot = -1 - small});
      there = step.steps.insert(place(), {.is_malloc = true, .slot = 100 + small, .bytes = bytes / 2 + 1});
      const auto behind = static_cast<std::ptrdiff_t>(random()) % (step.steps.end() - there);
      step.steps.insert(there + 1 + std::max<std::ptrdiff_t>(behind, 0), {.slot = 100 + small});
    }
    const Ledger shortened = Writer().write_steps(step, true), whole = Writer().write_steps(step, false);
    const Placement placement{round % 2 == 0 ? AddressOrder::shuffled : AddressOrder::descending, 3};
    AllocatorSettings settings;
    if (round % 4 == 1) settings.max_split = 32 * kMiB;
    CardMemory one(placement), other(placement);
    const Outcome played = play(shortened, settings, one), expected = play(whole, settings, other);
    if (!played.played.settled) continue;
    CHECK(played.stats.reserved.peak == expected.stats.reserved.peak);
    CHECK(played.stats.allocated.peak == expected.stats.allocated.peak);
    CHECK(played.stats.requested.peak == expected.stats.requested.peak);
    CHECK(played.stats.requested.current == expected.stats.requested.current);
    ++settled;
  }
  CHECK(settled > 70);
}

TEST_CASE("a step that leaves the allocator as it found it is also a later step, with its retries") {
  LedgerWriter writer;
  // Free memory of one stream serves no other, so each of the two has to be asked for again.
  const auto add_step = [&](int step) {
    writer.set_phase(Phase::forward, step);
    for (const Stream stream : {Stream::compute, Stream::all_gather}) {
      writer.free(writer.allocate(60 * kMiB, Category::activations, writer.label("x"), stream));
    }
  };
  add_step(1);
  writer.begin_repeat(kForever);
  add_step(2);
  writer.end_repeat();
  CardMemory card(kGiB, 100 * kMiB, {});
  const Outcome outcome = play(writer.take(), {}, card);
  CHECK(outcome.played.settled);
  CHECK(outcome.played.steps == 1);
  CHECK(outcome.played.retries == 3);
  CHECK(outcome.played.later_retries == 2);
}

TEST_CASE("a step that empties the cache leaves nothing behind for that") {
  LedgerWriter writer;
  writer.begin_repeat(kForever);
  const std::int64_t first = writer.allocate(kMiB, Category::activations, writer.label("x"));
  writer.empty_cache();
  const std::int64_t second = writer.allocate(kMiB, Category::activations, writer.label("y"));
  writer.free(first);
  writer.free(second);
  writer.end_repeat();
  const RepeatedPart part = repeated_parts(writer.take()).front();
  CHECK(part.left.empty());
  CHECK(part.carried.empty());
  CHECK(part.empties_cache);
}

TEST_CASE("when memory does not settle under one address order, the other orders get fewer passes") {
  LedgerWriter writer;
  writer.begin_repeat(kForever);
  for (const Stream stream : {Stream::compute, Stream::all_gather}) {
    writer.free(writer.allocate(60 * kMiB, Category::activations, writer.label("x"), stream));
  }
  writer.end_repeat();
  const Ledger ledger = writer.take();
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  PlayedOrders orders;
  const auto steps = [&](const Placement& placement) {
    CardMemory card(kGiB, 100 * kMiB, placement);  // each step asks for both again, at other addresses
    LedgerReplay replay({}, card);
    return LedgerPlayer(ledger, parts, replay, orders)
        .play([&](const Event& event) { return replay.add(event); })
        .steps;
  };
  CHECK(steps({AddressOrder::shuffled, 1}) == kMostPasses);
  CHECK(steps({AddressOrder::shuffled, 2}) == kFewPasses);
  CHECK(steps({AddressOrder::ascending, 0}) < kFewPasses);  // this one settles
  orders.events = kMostPlayed;
  CHECK(steps({AddressOrder::shuffled, 3}) == kFewestPasses);
}

TEST_CASE("a job's shortened ledger gives the peaks and retries of all its micro-batches and steps") {
  const char* const allocators[] = {"native", "max_split_size_mb=20", "expandable",
                                    "garbage_collection_threshold=0.5,per_process_memory_fraction=0.9"};
  const Cluster cluster = parse_cluster("4xH100-80GB");
  int settled = 0, retried = 0;
  for (int round = 0; round < 24; ++round) {
    CAPTURE(round);
    const ModelSpec spec = testing::small_model(testing::small_models()[static_cast<std::size_t>(round) % 10]);
    Job job = unresolved_job();
    job.allocator = allocators[round % 4];
    job.accumulation = 3 + round % 5;
    job.sequence = 128;
    job.micro_batch = 1 + 512 * (round % 3);
    job.accumulate = round % 2 == 0 ? Accumulate::sharded : Accumulate::unsharded;
    std::vector<std::string> notes;
    job = resolve_job(job, spec, cluster, notes);
    const Graph graph = build_graph(spec, loss_options(job));
    const Device& device = cluster.card.device;
    const Ledger shortened = count(graph, job, device, {}, {});
    const Ledger whole = count(graph, job, device, {}, {.steps = 2, .abbreviate = false});
    const AllocatorSettings settings = allocator_settings(job.allocator);
    const Bytes reserved = fold(shortened, job, device).peak_reserved;
    for (const std::int64_t percent : {70, 90, 100}) {
      const Bytes room{reserved.n / 100 * percent};
      CardMemory one(80 * kGiB, room, {}), other(80 * kGiB, room, {});
      const Outcome played = play(shortened, settings, one), expected = play(whole, settings, other);
      if (!played.played.out_of_memory) CHECK(played.played.steps > 0);
      if (!played.played.out_of_memory) CHECK(played.played.retries == expected.played.retries);
      if (expected.played.out_of_memory) CHECK(played.played.out_of_memory);
      CHECK(played.stats.requested.peak == expected.stats.requested.peak);
      CHECK(played.stats.reserved.peak >= expected.stats.reserved.peak);
      settled += played.played.settled ? 1 : 0;
      retried += expected.played.retries > 0 ? 1 : 0;
    }
  }
  CHECK(settled > 60);
  CHECK(retried > 5);
}

TEST_CASE("orders of addresses are played until four in a row show nothing new, and six at least") {
  const auto peaks = [](std::int64_t reserved, std::int64_t allocated = 90) {
    AllocatorStats stats;
    stats.reserved.peak = reserved;
    stats.allocated.peak = allocated;
    return stats;
  };
  OrdersSeen seen;
  CHECK(seen.wanted() == OrdersSeen::kFewest);
  for (std::size_t order = 0; order < OrdersSeen::kFewest; ++order) seen.add(peaks(100));
  CHECK(seen.wanted() == 0);
  const auto more_after = [&](const AllocatorStats& stats, std::int64_t retries = 0, std::int64_t later_retries = 0) {
    OrdersSeen other = seen;
    other.add(stats, retries, later_retries);
    return other.wanted();
  };
  CHECK(more_after(peaks(100)) == 0);
  CHECK(more_after(peaks(101)) == OrdersSeen::kAlike);
  CHECK(more_after(peaks(99)) == OrdersSeen::kAlike);
  CHECK(more_after(peaks(100, 91)) == OrdersSeen::kAlike);
  CHECK(more_after(peaks(100, 89)) == 0);
  CHECK(more_after(peaks(100), 1) == OrdersSeen::kAlike);
  CHECK(more_after(peaks(100), 0, 1) == OrdersSeen::kAlike);
}

}  // namespace vramfit
