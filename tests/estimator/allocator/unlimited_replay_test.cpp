#include "estimator/allocator/unlimited_replay.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <random>

#include "estimator/peak_sums.h"
#include "estimator/run_player.h"

namespace vramfit {

namespace {

constexpr Stream kStreamsUsed[] = {Stream::compute, Stream::all_gather, Stream::reduce_scatter};

/// A load, a first step and a steady one with micro-batches in it, of blocks of a few sizes that come again.
class RandomJob {
 public:
  explicit RandomJob(std::uint64_t seed) : random_(seed) {
    constexpr std::int64_t kMost[] = {24'000'000, 6'000'000, 60'000};
    for (int i = 0; i < 9; ++i) sizes_.push_back(1 + below(kMost[i % 3]));
    empties_ = below(3) == 0;
  }

  Ledger ledger() {
    writer_.set_phase(Phase::load, 0);
    for (int i = 0; i < 12; ++i) kept_.push_back(made(i));
    step(1);
    writer_.begin_repeat(kForever);
    step(2);
    writer_.end_repeat();
    return writer_.take();
  }

 private:
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }

  /// What it is decides its size and stream, so that a later pass finds in its place what an earlier one made.
  std::int64_t made(int label) {
    const auto number = static_cast<std::size_t>(label);
    return writer_.allocate(Bytes{sizes_[number % sizes_.size()]}, static_cast<Category>(label % kCategories),
                            writer_.label(fmt::format("{}", label)), kStreamsUsed[number % 7 == 0 ? number % 3 : 0]);
  }

  void free_one(std::vector<std::int64_t>& alive) {
    const auto which = static_cast<std::ptrdiff_t>(below(static_cast<std::int64_t>(alive.size())));
    writer_.free(alive[static_cast<std::size_t>(which)]);
    alive.erase(alive.begin() + which);
  }

  void micro_batch(int step) {
    std::vector<std::int64_t> alive;
    for (const Phase phase : {Phase::forward, Phase::loss, Phase::backward}) {
      writer_.set_phase(phase, step);
      for (int i = 0; i < 90; ++i) {
        const bool grows = phase == Phase::backward ? below(3) == 0 : below(3) != 0;
        if (grows || alive.empty()) {
          const std::int64_t id = made(static_cast<int>(below(20)));
          if (below(5) == 0) {
            writer_.free(id);  // at once
          } else {
            alive.push_back(id);
          }
        } else {
          free_one(alive);
        }
      }
    }
    while (!alive.empty()) free_one(alive);
  }

  void step(int number) {
    const bool repeats = number == 2 && below(2) == 0;
    if (repeats) writer_.begin_repeat(1 + below(9));
    micro_batch(number);
    if (repeats) writer_.end_repeat();
    writer_.set_phase(Phase::optimizer, number);
    for (std::size_t i = 0; i < kept_.size(); i += 3) {  // freed, and made anew in its stead
      writer_.free(kept_[i]);
      kept_[i] = made(static_cast<int>(i));
    }
    if (below(3) == 0) made(19);  // left behind: a loss for a log
    if (empties_) writer_.empty_cache();
  }

  std::mt19937_64 random_;
  std::vector<std::int64_t> sizes_;
  bool empties_ = false;
  LedgerWriter writer_;
  std::vector<std::int64_t> kept_;
};

struct Played {
  Playback playback;
  AllocatorStats stats;
  bool mattered = false;
  RankEstimate rank;
};

Played with_caching_allocator(const Ledger& ledger, const AllocatorSettings& settings, Placement placement) {
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  CardMemory card(placement);
  LedgerReplay replay(settings, card);
  PeakSums sums;
  PlayedOrders orders;
  Played played;
  played.playback = LedgerPlayer(ledger, parts, replay, orders, &sums).play([&](const Event& event) {
    sums.begin(event);
    sums.requested_with(event);
    const bool is_added = replay.add(event);
    sums.end(event, {replay.stats().allocated.current, replay.stats().reserved.current});
    return is_added;
  });
  played.stats = replay.stats();
  played.mattered = replay.placement_mattered();
  played.rank = sums.finish();
  return played;
}

Played in_runs(const Ledger& ledger, const AllocatorSettings& settings, Placement placement) {
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  const std::optional<CompactLedger> compact = compacted(ledger, parts, settings);
  REQUIRE(compact);
  CardMemory card(placement);
  UnlimitedReplay replay(*compact, settings, card, kNoLimit);
  PeakSums sums;
  PlayedOrders orders;
  Played played;
  played.playback = RunPlayer(ledger, *compact, replay, &sums).play(parts, orders);
  played.stats = replay.stats();
  played.mattered = replay.placement_mattered();
  played.rank = sums.finish();
  return played;
}

std::string text_of(const PeakedSum& sum) { return fmt::format(" {}/{}", sum.current, sum.peak); }

std::string text_of(const PhasePeak::Sizes& sizes) {
  return fmt::format(" {} {} {}", sizes.requested.n, sizes.allocated.n, sizes.reserved.n);
}

/// All that is asked of a replay.
std::string text_of(const Played& played) {
  const auto& [playback, stats, mattered, rank] = played;
  std::string text = fmt::format("{} {} {} {}; {} {} {};", playback.out_of_memory, playback.settled, playback.grows,
                                 playback.steps, mattered, stats.device_allocs, stats.device_frees);
  text += text_of(stats.allocated) + text_of(stats.reserved) + fmt::format(" {};", stats.requested.peak);
  text += fmt::format(" {} {} {};", rank.peak_requested.n, rank.peak_allocated.n, rank.peak_reserved.n);
  for (const Bytes bytes : rank.breakdown.categories) text += fmt::format(" {}", bytes.n);
  text += fmt::format(" {} {}", rank.breakdown.rounding.n, rank.breakdown.fragmentation.n);
  for (const PhasePeak& phase : rank.phases) {
    text += fmt::format("; {} {} {} {} {},", phase_name(phase.phase), phase.steady, phase.requested.n,
                        phase.allocated.n, phase.reserved.n);
    text += text_of(phase.entered);
  }
  return text;
}

constexpr Placement kPlacements[] = {{AddressOrder::ascending, 0},
                                     {AddressOrder::descending, 0},
                                     {AddressOrder::shuffled, 1},
                                     {AddressOrder::shuffled, 2},
                                     {AddressOrder::driver, 0}};

}  // namespace

TEST_CASE("in runs a card without a limit is what it is event by event, in every order of addresses") {
  int mattered = 0, not_settled = 0, gave_back = 0, by_address = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    const Ledger ledger = RandomJob(seed).ledger();
    const AllocatorSettings settings = parse_allocator_settings(
        seed % 5 == 0 ? "large_segment_size_mb:40" : (seed % 5 == 1 ? "roundup_power2_divisions:4" : ""));
    std::int64_t first = 0;
    for (const Placement placement : kPlacements) {
      const Played expected = with_caching_allocator(ledger, settings, placement);
      const Played played = in_runs(ledger, settings, placement);
      CHECK(text_of(played) == text_of(expected));
      mattered += played.mattered ? 1 : 0;
      not_settled += played.playback.settled ? 0 : 1;
      gave_back += played.stats.device_frees > 0 ? 1 : 0;
      if (first == 0) first = played.stats.reserved.peak;
      by_address += played.stats.reserved.peak == first ? 0 : 1;
    }
  }
  MESSAGE(mattered << " " << not_settled << " " << gave_back << " " << by_address);
  CHECK(mattered > 100);
  CHECK(gave_back > 100);
  CHECK(by_address > 5);
}

TEST_CASE("what a replay in runs has no form for is left to the caching allocator") {
  LedgerWriter writer;
  for (std::int64_t i = 1; i <= 300; ++i) writer.allocate(Bytes{i * 512}, Category::activations, writer.label("x"));
  const Ledger many = writer.take();
  CHECK(!compacted(many, {}, {}));
  LedgerWriter other;
  other.allocate(5 * kGiB, Category::activations, other.label("x"));
  const Ledger few = other.take();
  CHECK(compacted(few, {}, {}));
  for (const char* settings : {"expandable_segments:True", "max_split_size_mb:64"}) {
    CHECK(!compacted(few, {}, parse_allocator_settings(settings)));
  }
  LedgerWriter huge;
  huge.allocate(1024 * kGiB, Category::activations, huge.label("x"));
  CHECK(!compacted(huge.take(), {}, {}));
}

TEST_CASE("a replay in runs ends where as much is reserved as nobody asks about") {
  const Ledger ledger = RandomJob(3).ledger();
  const std::vector<RepeatedPart> parts = repeated_parts(ledger);
  const std::optional<CompactLedger> compact = compacted(ledger, parts, {});
  REQUIRE(compact);
  const auto is_over = [&](Bytes below) {
    CardMemory card(Placement{});
    UnlimitedReplay replay(*compact, {}, card, below);
    PlayedOrders orders;
    const Playback playback = RunPlayer(ledger, *compact, replay, nullptr).play(parts, orders);
    return playback.out_of_memory && replay.stats().reserved.peak >= below.n;
  };
  const Bytes reserved{in_runs(ledger, {}, Placement{}).stats.reserved.peak};
  CHECK(is_over(reserved));
  CHECK(!is_over(reserved + Bytes{1}));
}

}  // namespace vramfit
