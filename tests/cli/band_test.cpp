#include "cli/rehearse/search/band.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/cli/fake_pool.h"

namespace vramfit {
namespace {

using testing::FakePool;

constexpr std::int64_t kRouting = 2, kSelection = 4, kSampled = 8;

std::string value_of(const SearchPoint& point, std::string_view name) {
  const auto found = std::ranges::find(point, name, [](const auto& pair) { return std::string_view(pair.first); });
  return found == point.end() ? "" : found->second;
}

/// Needs 10 bytes, 20 more with the worst routing, 5 less without selected rows; says what it rests on.
RehearsalTrial trial(const SearchPoint& point, std::int64_t assumptions) {
  const bool is_worst = value_of(point, "routing") == "worst", is_empty = value_of(point, "selected") == "0";
  return {.point = point,
          .verdict = "at_risk",
          .why = "why",
          .total = {10 + (is_worst ? 20 : 0) - (is_empty ? 5 : 0)},
          .assumptions = assumptions};
}

/// The values of its trials, in their order.
std::vector<std::string> points(const RehearsalBand& band) {
  std::vector<std::string> texts;
  for (const RehearsalTrial& each : band.trials) texts.push_back(point_text(each.point));
  return texts;
}

TEST_CASE("a band has all combinations of the ends that matter, however many run at once") {
  for (const std::size_t jobs : {1, 2, 4}) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      FakePool pool([](const SearchPoint& point) { return trial(point, kRouting | kSelection | kSampled); }, jobs,
                    seed);
      pool.fails_beside_others = seed % 2 == 1;
      const RehearsalBand band = run_band(pool);
      CHECK(points(band) == std::vector<std::string>{"routing=balanced selected=1", "routing=worst selected=1",
                                                     "routing=balanced selected=0", "routing=worst selected=0"});
      CHECK((band.least == Bytes{5} && band.most == Bytes{30}));
      CHECK((band.verdict == "at_risk" && band.exit_code() == 0));
      CHECK(band.why ==
            "fits at all 4 combinations of the ends of routing and selection, which sizes or branches follow from");
      CHECK(band_text(band, "g", kGiB).ends_with("also follow from what has no two ends: sampled\n"));
    }
  }
}

TEST_CASE("without an assumption that has two ends, a band is one rehearsal") {
  FakePool pool([](const SearchPoint& point) { return trial(point, kSampled); }, 4, 0);
  const RehearsalBand band = run_band(pool);
  CHECK((pool.started == 1 && points(band) == std::vector<std::string>{""}));
  CHECK((band.verdict == "at_risk" && band.why == "why" && band.least == band.most));
}

TEST_CASE("an assumption that only the other end of a first one rests on is found") {
  const auto rehearse = [](const SearchPoint& point) {
    return trial(point, value_of(point, "routing") == "worst" ? kRouting | kSelection : kRouting);
  };
  FakePool pool(rehearse, 1, 0);
  CHECK(run_band(pool).trials.size() == 4);
}

TEST_CASE("one end that does not fit, or fails, or is interrupted decides the band, and is named") {
  struct Case {
    int exit_code, expected;
    bool is_interrupted;
    const char* verdict;
  };
  for (const Case& each :
       {Case{6, 6, false, "does_not_fit"}, Case{3, 3, false, "failed"}, Case{130, 130, true, "interrupted"}}) {
    const auto rehearse = [&](const SearchPoint& point) {
      RehearsalTrial made = trial(point, kRouting);
      if (value_of(point, "routing") == "worst") {
        made.exit_code = each.exit_code, made.verdict = each.verdict, made.is_interrupted = each.is_interrupted;
      }
      return made;
    };
    FakePool pool(rehearse, 1, 0);
    const RehearsalBand band = run_band(pool);
    CHECK((band.verdict == each.verdict && band.exit_code() == each.expected));
    CHECK(band.why == "with routing=worst: why");
    CHECK(band.most == Bytes{each.exit_code == 6 ? 30 : 10});  // of one that failed, nothing is known
  }
}

TEST_CASE("a program that fails anyway is rehearsed once") {
  FakePool pool(
      [](const SearchPoint& point) {
        RehearsalTrial made = trial(point, kRouting);
        made.exit_code = 1;
        return made;
      },
      4, 0);
  CHECK((run_band(pool).exit_code() == 1 && pool.started == 1));
}

TEST_CASE("the settings of a point are those of its names") {
  const PhantomSettings settings = settings_at({}, {{"routing", "worst"}, {"selected", "0"}});
  CHECK((settings.routing == "worst" && settings.selected == 0));
}

}  // namespace
}  // namespace vramfit
