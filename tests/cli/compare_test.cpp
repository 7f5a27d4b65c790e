#include "cli/compare/compare.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "base/json/json_value.h"

namespace vramfit {
namespace {

RankEstimate rank_with(std::int64_t peak) {
  RankEstimate rank;
  rank.peak_requested = rank.peak_allocated = rank.peak_reserved = rank.total = rank.upper_bound = {peak};
  rank.breakdown.categories[static_cast<std::size_t>(Category::activations)] = {peak};
  rank.phases.push_back(
      {.phase = Phase::forward, .steady = true, .requested = {peak}, .allocated = {peak}, .reserved = {peak}});
  return rank;
}

PlanFile plan_with(std::int64_t peak) {
  PlanFile plan;
  plan.spec.name = "tiny";
  plan.cluster.text = "2xcpu-1GiB";
  plan.predicted_ranks = {rank_with(peak)};
  return plan;
}

RunRecord run_with(std::int64_t peak) {
  RunRecord run;
  run.model_name = "tiny";
  run.cluster.text = "2xcpu-1GiB";
  run.ranks = {{.memory = rank_with(peak / 2), .pinned = {}, .host = {}, .peak_rss = {}},
               {.memory = rank_with(peak), .pinned = {}, .host = {}, .peak_rss = {}}};
  run.worst = 1;
  return run;
}

}  // namespace

TEST_CASE("an error is signed: predicting too little is negative, measured by what was measured") {
  CHECK(signed_error({98}, {100}) == doctest::Approx(-0.02));
  CHECK(signed_error({110}, {100}) == doctest::Approx(0.10));
  CHECK(signed_error({0}, {0}) == 0);
  CHECK(std::isinf(signed_error({1}, {0})));
}

TEST_CASE("the worst measured rank is compared, and a peak at the tolerance is within it") {
  const Comparison at_the_edge = compare(plan_with(98), run_with(100), 0.02);
  CHECK(at_the_edge.allocated.measured == Bytes{100});
  CHECK(at_the_edge.within());
  CHECK_FALSE(compare(plan_with(97), run_with(100), 0.02).within());
  CHECK_FALSE(compare(plan_with(103), run_with(100), 0.02).within());
}

TEST_CASE("phases and categories are joined by name") {
  const Comparison comparison = compare(plan_with(90), run_with(100), 0.02);
  REQUIRE(comparison.phases.size() == 1);
  CHECK(comparison.phases.front().name == "forward, steady");
  CHECK(comparison.categories.at(static_cast<std::size_t>(Category::activations)).predicted == Bytes{90});
  CHECK(comparison_text(comparison).find("OUTSIDE TOLERANCE: peak allocated -10.00 %") == 0);
}

TEST_CASE("a phase that only one side has is listed, and says which side lacks it") {
  PlanFile plan = plan_with(100);
  RunRecord run = run_with(100);
  PhasePeak other = plan.predicted_ranks.front().phases.front();
  other.phase = Phase::clip;
  plan.predicted_ranks.front().phases.push_back(other);
  other.phase = Phase::evaluation;
  run.ranks.back().memory.phases.push_back(other);
  const Comparison comparison = compare(plan, run, 0.02);
  REQUIRE(comparison.phases.size() == 3);
  CHECK(comparison.phases[1].name == "evaluation, steady");
  CHECK_FALSE(comparison.phases[1].predicted);
  CHECK(comparison.phases[2].name == "clip, steady");
  CHECK_FALSE(comparison.phases[2].measured);
  const std::string text = comparison_text(comparison);
  CHECK(text.find("not predicted", text.find("evaluation, steady")) < text.find("clip, steady"));
  CHECK(text.find("not measured", text.find("clip, steady")) != std::string::npos);
  const std::string json = comparison_to_json(comparison);
  CHECK(json.find("null", json.find("evaluation, steady")) < json.find("clip, steady"));
}

TEST_CASE("a peak that was predicted and never came is \"not measured\"") {
  CHECK(comparison_text(compare(plan_with(100), run_with(0), 0.02)).find("peak allocated not measured") !=
        std::string::npos);
}

TEST_CASE("a run of another job than the plan's is refused with the flag that differs") {
  RunRecord run = run_with(100);
  run.job.sequence = 77;
  CHECK_THROWS_WITH_AS(compare(plan_with(100), run, 0.02), doctest::Contains("--seq-len is"), InputError);
}

TEST_CASE("a run of another program than the planned one says what makes it another") {
  PlanFile plan = plan_with(100);
  RunRecord run = run_with(100);
  plan.fingerprint = run.fingerprint = "00000000000000aa";
  run.effects = RunEffects{};
  CHECK(compare(plan, run, 0.02).program_differences.empty());
  CHECK(comparison_text(compare(plan, run, 0.02)).find("fingerprints") == std::string::npos);

  run.fingerprint = "00000000000000bb";
  const auto only = [&] {
    const Comparison comparison = compare(plan, run, 0.02);
    REQUIRE(comparison.program_differences.size() == 1);
    CHECK(comparison_text(comparison).find(comparison.program_differences.front()) != std::string::npos);
    CHECK(comparison_to_json(comparison).find(comparison.program_differences.front()) != std::string::npos);
    return comparison.program_differences.front();
  };
  CHECK(only().find("another version of vramfit") != std::string::npos);
  run.effects->clip = false;
  CHECK(only().find("counts clipping") != std::string::npos);
  run.effects = RunEffects{.saves = true};
  CHECK(only().find("--save)") != std::string::npos);
  run.effects = RunEffects{.saves_full = true};
  CHECK(only().find("--save-full") != std::string::npos);
}

TEST_CASE("fingerprints that a file lacks are not compared") {
  PlanFile plan = plan_with(100);
  RunRecord run = run_with(100);
  run.fingerprint = "00000000000000bb";
  CHECK(compare(plan, run, 0.02).program_differences.empty());
  std::swap(plan.fingerprint, run.fingerprint);
  CHECK(compare(plan, run, 0.02).program_differences.empty());
}

TEST_CASE("a tolerance is a share or a percentage, and nothing else") {
  CHECK(parse_tolerance("2%") == doctest::Approx(0.02));
  CHECK(parse_tolerance("0.05") == doctest::Approx(0.05));
  for (const char* wrong : {"", "%", "-1%", "nan", "two", "101%", "0.02x"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_tolerance(wrong), InputError);
  }
}

TEST_CASE("a run record survives being written and read") {
  RunRecord run = run_with(100);
  run.device = "cpu";
  run.job.precision = precision_named("fp32");
  run.cluster.card.memory = kGiB;
  run.cluster.card.device.kind = DeviceKind::cpu;
  run.loss = {3.5, std::nan("")};
  run.tokens_per_second = 12.25;
  const RunRecord read = run_from_json(run_to_json(run), "run.json");
  CHECK(read.ranks.size() == 2);
  CHECK(read.ranks.back().memory.peak_allocated == Bytes{100});
  CHECK(read.loss.front() == 3.5);
  CHECK(std::isnan(read.loss.back()));
  CHECK(read.worst == 1);
  CHECK(run_to_json(read) == run_to_json(run));
}

}  // namespace vramfit
