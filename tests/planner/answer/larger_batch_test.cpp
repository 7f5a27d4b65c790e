#include "planner/answer/larger_batch.h"

#include <doctest/doctest.h>

#include "tests/planner/requests.h"

namespace vramfit {
namespace {

/// A job whose global batch nobody set: one sequence a GPU.
PlanRequest open_request(const std::string& gpus) {
  PlanRequest request = testing::request_for("llama", parse_cluster(gpus));
  request.job.global_batch = unresolved_job().global_batch;
  request.fixed = {"seq_len"};
  return request;
}

/// The chosen job with the batch that is offered.
Job with_larger(const Plan& plan) {
  Job job = plan.chosen->job;
  job.global_batch = plan.larger->global_batch;
  job.micro_batch = plan.larger->micro_batch;
  job.accumulation = plan.larger->accumulation;
  return job;
}

}  // namespace

TEST_CASE("the larger batch that is offered fits, gives what is said, and a plan for it is at least as fast") {
  const PlanRequest request = open_request("2xH100-80GB");
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  REQUIRE(plan.larger);
  const LargerBatch& larger = *plan.larger;
  CHECK(larger.global_batch > plan.chosen->job.global_batch);
  CHECK(larger.global_batch == larger.micro_batch * larger.accumulation * data_ranks(plan.chosen->job));
  CHECK(larger.tokens_per_second >= (1 + kLeastGain) * plan.chosen->tokens_per_second);
  Evaluator evaluator(request);
  CHECK(evaluator.timed(with_larger(plan)).tokens_per_second == larger.tokens_per_second);
  CHECK(evaluator.estimate_of(with_larger(plan)).verdict == Verdict::fits);
  PlanRequest asked = request;
  testing::fix(asked, "global_batch", std::to_string(larger.global_batch));
  const Plan planned = make_plan(asked);
  REQUIRE(planned.chosen);
  CHECK(planned.chosen->tokens_per_second >= larger.tokens_per_second);
}

TEST_CASE("where memory holds no larger micro-batch, more of them are offered") {
  const PlanRequest open = open_request("2xH100-80GB");
  const Plan plan = make_plan(open);
  REQUIRE(plan.chosen);
  PlanRequest request = open;
  testing::fix(request, "micro_batch", "1");
  const Plan kept = make_plan(request);
  REQUIRE(kept.larger);
  CHECK(kept.larger->micro_batch == 1);
  CHECK(kept.larger->accumulation > 1);
}

TEST_CASE("a global batch that is set, or follows from what is, stays without an offer") {
  for (const std::vector<std::string>& set :
       {std::vector<std::string>{"global_batch"}, std::vector<std::string>{"micro_batch", "grad_accum"}}) {
    PlanRequest request = open_request("2xH100-80GB");
    for (const std::string& field : set) testing::fix(request, field, field == "global_batch" ? "2" : "1");
    const Plan plan = make_plan(request);
    REQUIRE(plan.chosen);
    CHECK_FALSE(plan.larger);
  }
}

TEST_CASE("accumulation that is set is kept") {
  PlanRequest request = open_request("2xH100-80GB");
  testing::fix(request, "grad_accum", "2");
  const Plan plan = make_plan(request);
  REQUIRE(plan.larger);
  CHECK(plan.larger->accumulation == 2);
}

}  // namespace vramfit
