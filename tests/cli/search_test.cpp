#include "cli/rehearse/search/search.h"

#include <doctest/doctest.h>

#include <set>

#include "base/error.h"
#include "base/files/result_file.h"
#include "cli/rehearse/search/search_schedule.h"
#include "cli/rehearse/search/trial_cache.h"
#include "tests/cli/fake_pool.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

using testing::FakePool;
using testing::Rehearse;

const std::vector<std::string> kCommand{"python", "train.py", "--bs={bs}", "{seq}", "{\"bs\": {bs}}"};

/// Fits up to `most`; needs as many bytes as the value of "bs".
RehearsalTrial trial_up_to(std::int64_t most, const SearchPoint& point) {
  const std::int64_t value = std::stoll(point.back().second);
  return {.point = point,
          .verdict = value <= most ? "fits" : "does_not_fit",
          .why = "",
          .total = {value},
          .exit_code = value <= most ? 0 : 6,
          .is_interrupted = false,
          .is_cached = false};
}

SearchResult search_alone(const std::vector<SearchAxis>& axes, const Rehearse& rehearse) {
  FakePool pool(rehearse, 1, 0);
  return run_search(axes, pool);
}

TEST_CASE("a search with several at once finds what one with one at a time does, and shows the same trials") {
  unsigned seed = 0;
  std::size_t most_at_once = 0;
  for (const bool is_disturbed : {false, true}) {
    for (const std::int64_t most : {0, 1, 5, 31, 47, 64}) {
      for (const std::size_t jobs : {2, 3, 8}) {
        CAPTURE(most);
        CAPTURE(jobs);
        const Rehearse rehearse = [&](const SearchPoint& point) {
          RehearsalTrial trial = trial_up_to(most / std::stoll(point[0].second), point);
          if (point[0].second == "3" && point[1].second == "8") trial.exit_code = 9;
          return trial;
        };
        const auto axes = parse_search({"seq=1,2,3", "bs=1..64"}, kCommand);
        const SearchResult alone = search_alone(axes, rehearse);
        FakePool pool(rehearse, jobs, ++seed);
        pool.fails_beside_others = is_disturbed;
        const SearchResult together = run_search(axes, pool);
        CHECK(search_text(together, "g", kGiB) == search_text(alone, "g", kGiB));
        CHECK(search_to_json(together, "g", kGiB) == search_to_json(alone, "g", kGiB));
        CHECK(pool.most <= jobs);
        std::size_t shown = 0;
        for (const SearchRow& row : together.rows) shown += row.trials.size();
        CHECK(pool.accepted.size() == shown);
        most_at_once = std::max(most_at_once, pool.most);
      }
    }
  }
  CHECK(most_at_once == 8);
}

TEST_CASE("values that may be needed next are tried beforehand, and a search with room for one tries no others") {
  const Rehearse rehearse = [](const SearchPoint& point) { return trial_up_to(40, point); };
  const auto axes = parse_search({"bs=1..64"}, kCommand);
  FakePool alone(rehearse, 1, 0), together(rehearse, 4, 0);
  const std::size_t shown = run_search(axes, alone).rows[0].trials.size();
  CHECK((alone.started == shown && alone.most == 1));
  CHECK(run_search(axes, together).rows[0].trials.size() == shown);
  CHECK((together.started > shown && together.most == 4));
}

TEST_CASE("a search is read, and what is wrong with one is said by its name") {
  CHECK(parse_search_axis("bs=1..64").last == 64);
  CHECK(parse_search_axis("seq in 2048, 4096").values == std::vector<std::string>{"2048", "4096"});
  const auto refused = [](const std::vector<std::string>& texts, const char* why) {
    CHECK_THROWS_WITH_AS(parse_search(texts, kCommand), doctest::Contains(why), InputError);
  };
  refused({"bs"}, "--search bs: expected NAME=FIRST..LAST or");
  refused({"b s=1"}, "a name has letters");
  refused({"bs=4..2"}, "--search bs=4..2: 4 is more than 2");
  refused({"bs=1..99999999999999999999"}, "--search bs=1..9999");
  refused({"bs=-1..2"}, "--search bs=-1..2");
  refused({"bs=1,,2"}, "a value is empty");
  refused({"bs=1,1"}, "a value comes twice");
  refused({"bs=1..2", "bs=3"}, "is searched already");
  refused({"bs=1..2", "seq=1..2"}, "one range is possible");
  refused({"lr=1..2"}, "CMD has no {lr}");
  std::string many = "seq=0";
  for (int value = 1; value < 2000; ++value) many.append(1, ',').append(std::to_string(value));
  refused({many}, "more than 1000 combinations");
}

TEST_CASE("values go where their names are, and other braces stay") {
  CHECK(with_values(kCommand, {{"bs", "4"}, {"seq", "{bs}"}}) ==
        std::vector<std::string>{"python", "train.py", "--bs=4", "{bs}", "{\"bs\": 4}"});
}

TEST_CASE("the largest value that fits is found, and the next one was tried") {
  for (const std::int64_t most : {0, 1, 2, 3, 31, 47, 63, 64, 1000}) {
    CAPTURE(most);
    const SearchResult found = search_alone(parse_search({"bs=1..64"}, kCommand),
                                            [&](const SearchPoint& point) { return trial_up_to(most, point); });
    const SearchRow& row = found.rows.at(0);
    CHECK(row.largest == (most == 0 ? std::nullopt : std::optional(std::min<std::int64_t>(most, 64))));
    CHECK(row.trials.size() <= 12);
    CHECK(found.exit_code() == (most == 0 ? 6 : 0));
    std::set<std::int64_t> tried;
    for (const RehearsalTrial& trial : row.trials) tried.insert(trial.total.n);
    CHECK(tried.size() == row.trials.size());
    if (most < 64) CHECK(tried.contains(most + 1));
    CHECK(!row.falling());
  }
}

TEST_CASE("each combination of listed values is a row, and one that can't be rehearsed does not end the others") {
  const SearchResult found = search_alone(parse_search({"seq=1,2", "bs=1..8"}, kCommand), [](const SearchPoint& point) {
    RehearsalTrial trial = trial_up_to(5, point);
    if (point[0].second == "1" && point[1].second == "4") trial.exit_code = 9;
    return trial;
  });
  REQUIRE(found.rows.size() == 2);
  CHECK(found.rows[0].failed()->total == Bytes{4});
  CHECK(found.rows[1].largest == 5);
  CHECK(found.exit_code() == 9);
  CHECK(search_text(found, "1xH100-80GB", kGiB).find("seq=1 bs=4 could not be rehearsed") != std::string::npos);
}

TEST_CASE("an interrupted search ends") {
  const SearchResult found = search_alone(parse_search({"seq=1,2"}, kCommand), [](const SearchPoint& point) {
    RehearsalTrial trial = trial_up_to(5, point);
    trial.is_interrupted = true;
    trial.exit_code = 130;
    return trial;
  });
  CHECK(found.rows.size() == 1);
  CHECK(found.exit_code() == 130);
}

TEST_CASE("a search is over when one of several is interrupted, needed or not") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    int left = 6;
    const Rehearse rehearse = [&](const SearchPoint& point) {
      RehearsalTrial trial = trial_up_to(40, point);
      if (--left < 0) trial.is_interrupted = true, trial.exit_code = 130;
      return trial;
    };
    FakePool pool(rehearse, 4, seed);
    const SearchResult found = run_search(parse_search({"seq=1,2", "bs=1..64"}, kCommand), pool);
    CHECK(found.exit_code() == 130);
    CHECK(left >= -1);  // nothing was waited for after it
    REQUIRE(!found.rows.empty());
    CHECK(found.rows.back().failed() != nullptr);
  }
}

TEST_CASE("a need that falls is said, because a value beyond the largest may fit too") {
  const SearchResult found = search_alone(parse_search({"bs=1..64"}, kCommand), [](const SearchPoint& point) {
    RehearsalTrial trial = trial_up_to(40, point);
    if (point[0].second == "32") trial.total = {3};
    return trial;
  });
  CHECK(found.rows[0].falling().has_value());
  CHECK(search_text(found, "1xH100-80GB", kGiB).find("a value beyond 40 may fit too") != std::string::npos);
  CHECK(search_to_json(found, "1xH100-80GB", kGiB).find("\"monotonic\": false") != std::string::npos);
}

TEST_CASE("results are found again by what was rehearsed, and a broken file is named") {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.path() / "cache", script = folder.path() / "train.py";
  write_file(script, "one");
  RehearsalRequest request;
  request.cluster = parse_cluster("1xH100-80GB");
  const std::string key = trial_key(request, {"/bin/sh", script, "4"});
  TrialCache(path).put(key, trial_up_to(5, {{"bs", "4"}}));
  const auto found = TrialCache(path).find(key);
  REQUIRE(found.has_value());
  CHECK((found->total == Bytes{4} && found->is_cached && found->exit_code == 0));

  CHECK(trial_key(request, {"/bin/sh", script, "5"}) != key);
  write_file(script, "two");
  CHECK(trial_key(request, {"/bin/sh", script, "4"}) != key);
  write_file(script, "one");
  CHECK(trial_key(request, {"/bin/sh", script, "4"}) == key);
  request.settings.routing = "worst";
  CHECK(trial_key(request, {"/bin/sh", script, "4"}) != key);
  write_file(path, "{\"key\": 3}\n");
  CHECK_THROWS_WITH_AS(TrialCache{path}, doctest::Contains("line 1"), InputError);
}

}  // namespace
}  // namespace vramfit
