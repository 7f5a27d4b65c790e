#include "estimator/allocator/ledger_replay.h"

#include <doctest/doctest.h>

#include <optional>
#include <random>

#include "estimator/estimate.h"

namespace vramfit {

namespace {

const Device kCuda{.kind = DeviceKind::cuda, .name = "H100-80GB", .compute_capability = 90, .sm_count = 132};

/// Blocks of `least` + 0 to `sizes` - 1 times `step` MiB come and go, up to `most` at a time.
struct Kind {
  int events = 60;
  std::size_t most = 8;
  std::int64_t least = 12, step = 4;
  std::uint64_t sizes = 5;
};

Ledger random_ledger(std::mt19937_64& random, const Kind& kind) {
  LedgerWriter writer;
  std::vector<std::int64_t> live;
  for (int event = 0; event < kind.events; ++event) {
    if (live.size() > kind.most || (!live.empty() && random() % 2 == 0)) {
      const std::size_t which = random() % live.size();
      writer.free(live[which]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      const std::int64_t mebibytes = kind.least + kind.step * static_cast<std::int64_t>(random() % kind.sizes);
      live.push_back(writer.allocate(mebibytes * kMiB, Category::activations, writer.label("x")));
    }
  }
  return writer.take();
}

struct Outcome {
  AllocatorStats stats;
  bool placement_mattered = false;
};

Outcome outcome(const Ledger& ledger, Placement placement) {
  CardMemory card(placement);
  LedgerReplay replay({}, card);
  for (const Event& event : ledger.events) replay.add(event);
  return {replay.stats(), replay.placement_mattered()};
}

}  // namespace

TEST_CASE("with the native allocator the peaks are those of the worst order of addresses, and the band says the best") {
  std::mt19937_64 random(3);
  Job job;
  job.allocator = "native";
  int wide = 0, unmoved = 0;
  for (int round = 0; round < 30; ++round) {
    const Ledger ledger =
        random_ledger(random, {.events = 40 + 10 * round, .most = 12, .least = 1, .step = 1, .sizes = 40});
    const RankEstimate rank = fold(ledger, job, kCuda);
    const Outcome seen = outcome(ledger, {AddressOrder::shuffled, 3});  // one of those that are always played
    CHECK(rank.least_reserved <= Bytes{seen.stats.reserved.peak});
    CHECK(rank.peak_reserved >= Bytes{seen.stats.reserved.peak});
    CHECK(rank.peak_allocated >= Bytes{seen.stats.allocated.peak});
    CHECK(rank.breakdown.fragmentation == rank.peak_reserved - rank.peak_allocated);
    CHECK((seen.placement_mattered || rank.least_reserved == rank.peak_reserved));
    CHECK((band_width(rank) > 0) == (rank.least_reserved < rank.peak_reserved));
    wide += rank.least_reserved < rank.peak_reserved ? 1 : 0;
    unmoved += seen.placement_mattered ? 0 : 1;
  }
  CHECK(wide > 2);
  CHECK(unmoved > 0);
}

TEST_CASE("where a replay says that addresses decided nothing, every order of addresses gives the same figures") {
  std::mt19937_64 random(11);
  int unmoved = 0, moved = 0;
  for (int round = 0; round < 200; ++round) {
    const Ledger ledger = random_ledger(random, {});  // few sizes, so that segments are alike
    const Outcome first = outcome(ledger, {AddressOrder::descending, 0});
    bool differs = false;
    for (std::uint64_t seed = 1; seed < 12; ++seed) {
      const Outcome other = outcome(ledger, {AddressOrder::shuffled, seed});
      CHECK(other.placement_mattered == first.placement_mattered);
      differs = differs || !(other.stats == first.stats);
    }
    CHECK((first.placement_mattered || !differs));
    unmoved += first.placement_mattered ? 0 : 1;
    moved += differs ? 1 : 0;
  }
  CHECK(unmoved > 20);
  CHECK(moved > 0);
}

TEST_CASE("on a card that is too small for what is reserved the allocator gets by with retries, or runs out") {
  LedgerWriter writer;
  const auto block = [&](std::int64_t mebibytes) {
    return writer.allocate(mebibytes * kMiB, Category::activations, writer.label("x"));
  };
  writer.free(block(40));
  const std::int64_t first = block(30);
  block(12);
  writer.free(first);
  block(50);
  const Ledger ledger = writer.take();
  AllocatorSettings settings;
  CHECK(replay_at_capacity(ledger, settings, kGiB, 200 * kMiB).retries == 0);
  const CapacityReplay tight = replay_at_capacity(ledger, settings, kGiB, 100 * kMiB);
  CHECK(tight.retries == 1);
  CHECK_FALSE(tight.out_of_memory);
  CHECK(replay_at_capacity(ledger, settings, kGiB, 60 * kMiB).out_of_memory);
  settings.memory_fraction = 0.05;  // 51.2 MiB
  CHECK(replay_at_capacity(ledger, settings, kGiB, kGiB).out_of_memory);
}

}  // namespace vramfit
