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

/// What a plan with the offered batch says.
Plan with_larger(const PlanRequest& request, const Plan& plan) {
  PlanRequest asked = request;
  testing::fix(asked, "global_batch", std::to_string(plan.larger->global_batch));
  return make_plan(asked);
}

}  // namespace

TEST_CASE("a plan for the larger batch that is offered has its speed and its micro-batches") {
  using Set = std::vector<std::pair<std::string, std::string>>;
  int offered = 0;
  for (const char* const gpus : {"1xH100-80GB", "2xH100-80GB", "4xA100-40GB", "2x2xRTX3090", "2xL40S"}) {
    for (const Set& set : {Set{}, Set{{"optimizer", "sgd"}}, Set{{"sharding", "full-shard"}}, Set{{"micro_batch", "1"}},
                           Set{{"method", "lora"}}}) {
      for (const std::int64_t sequence : {64, 1024}) {
        PlanRequest request = open_request(gpus);
        request.job.sequence = sequence;
        for (const auto& [name, value] : set) testing::fix(request, name, value);
        if (sequence > request.spec.max_position_embeddings && request.spec.max_position_embeddings > 0) continue;
        const Plan plan = make_plan(request);
        REQUIRE(plan.chosen);
        if (!plan.larger) continue;
        ++offered;
        const LargerBatch& larger = *plan.larger;
        CAPTURE(gpus);
        CAPTURE(sequence);
        CAPTURE(set.empty() ? "" : set.front().first);
        CHECK(larger.global_batch > plan.chosen->job.global_batch);
        CHECK(larger.global_batch == larger.micro_batch * larger.accumulation * data_ranks(plan.chosen->job));
        CHECK(larger.tokens_per_second >= (1 + kLeastGain) * plan.chosen->tokens_per_second);
        const Plan planned = with_larger(request, plan);
        REQUIRE(planned.chosen);
        CHECK(planned.chosen->tokens_per_second == larger.tokens_per_second);
        CHECK(planned.chosen->job.micro_batch == larger.micro_batch);
      }
    }
  }
  MESSAGE(offered, " offers");
  CHECK(offered > 20);
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
