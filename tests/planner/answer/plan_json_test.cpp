#include "planner/answer/plan_json.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/files/plan_reader.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::cpu_ranks;
using testing::request_for;

TEST_CASE("a plan file holds all that a run needs, and reads back as it was") {
  const PlanRequest request = request_for("gemma3_text", cpu_ranks(2, kGiB));
  const Plan plan = make_plan(request);
  const PlanFile file = plan_from_json(plan_to_json(request, plan), "plan.json");
  CHECK(job_as_flags(file.job, unresolved_job()) == job_as_flags(plan.chosen->job, unresolved_job()));
  CHECK(file.spec.hidden_size == request.spec.hidden_size);
  CHECK(file.spec.layer_spans == request.spec.layer_spans);
  CHECK(file.cluster.card.memory == request.cluster.card.memory);
  CHECK(file.predicted_ranks.size() == plan.chosen->estimate.ranks.size());
  CHECK(file.predicted_ranks.front().total == plan.chosen->estimate.ranks.front().total);
  CHECK(file.fingerprint.size() == 16);
}

TEST_CASE("a plan file from before programs had fingerprints still reads") {
  const PlanRequest request = request_for("llama", cpu_ranks(1, kGiB));
  std::string text = plan_to_json(request, make_plan(request));
  const std::size_t begin = text.find("\"fingerprint\"");
  REQUIRE(begin != std::string::npos);
  text.erase(begin, text.find(',', begin) + 1 - begin);
  CHECK(plan_from_json(text, "plan.json").fingerprint.empty());
}

TEST_CASE("a plan file has its bucket's size, not how it is to be found") {
  const PlanRequest request = request_for("llama", cpu_ranks(1, kGiB));
  std::string text = plan_to_json(request, make_plan(request));
  const std::size_t begin = text.find("\"bucket_bytes\": ");
  REQUIRE(begin != std::string::npos);
  const std::size_t value = text.find(' ', begin) + 1;
  text.replace(value, text.find(',', value) - value, "\"auto\"");
  CHECK_THROWS_WITH_AS(plan_from_json(text, "plan.json"), doctest::Contains("bucket_bytes: auto: a plan has a number"),
                       InputError);
}

TEST_CASE("a search without a plan is no plan file") {
  const PlanRequest request = request_for("llama", cpu_ranks(2, Bytes{4096}));
  const Plan plan = make_plan(request);
  CHECK_FALSE(plan.chosen);
  CHECK_THROWS_WITH_AS(plan_from_json(plan_to_json(request, plan), "plan.json"),
                       doctest::Contains("plan.json: verdict: no_plan"), InputError);
}

TEST_CASE("a plan has its speed with a band and its origins; without a plan the closest job is there") {
  const PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  REQUIRE(plan.chosen->estimate.speed);
  const Speed& speed = *plan.chosen->estimate.speed;
  CHECK(speed.time.step_seconds == plan.chosen->time.step_seconds);
  CHECK(speed.tokens_per_second == plan.chosen->tokens_per_second);
  CHECK(speed.least_step_seconds < speed.time.step_seconds);
  CHECK_FALSE(plan.chosen->estimate.figures.empty());
  CHECK(plan_to_json(request, plan).find("\"least_step_seconds\"") != std::string::npos);

  const PlanRequest tiny = request_for("llama", parse_cluster("2xH100-80GB@1GiB"));
  const Plan none = make_plan(tiny);
  REQUIRE_FALSE(none.chosen);
  REQUIRE(none.closest);
  CHECK(none.closest->total > tiny.cluster.card.memory);
  CHECK(plan_to_json(tiny, none).find("\"closest\"") != std::string::npos);
}

}  // namespace vramfit
