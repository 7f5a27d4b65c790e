#include "planner/answer/waterfall.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "tests/planner/requests.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::cpu_ranks;
using testing::fix;
using testing::request_for;
using testing::resolved;

namespace {

void check_steps(const PlanRequest& request) {
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  Evaluator evaluator(request);
  const Job asked = resolved(request).job;
  const bool is_asked = job_as_flags(plan.chosen->job, asked).empty();
  CHECK(plan.steps.empty() == is_asked);
  if (is_asked) return;
  CHECK(plan.steps.front().change.empty());
  CHECK(plan.steps.front().total == evaluator.trial_of(asked).total);
  CHECK(plan.steps.front().tokens_per_second == evaluator.timed(asked).tokens_per_second);
  CHECK(plan.steps.back().total == worst_total(plan.chosen->estimate));
  CHECK(plan.steps.back().tokens_per_second == plan.chosen->tokens_per_second);
  for (std::size_t i = 1; i < plan.steps.size(); ++i) CHECK_FALSE(plan.steps[i].change.empty());
}

}  // namespace

TEST_CASE("the steps lead from the job as asked for to the plan, whatever the budget") {
  for (const std::string model : {"llama", "gpt2"}) {
    for (const std::int64_t kib : {1200, 1600, 2400, 8000, 100000}) {
      CAPTURE(model);
      CAPTURE(kib);
      PlanRequest request = request_for(model, cpu_ranks(2, kib * kKiB));
      if (!make_plan(request).chosen) continue;
      check_steps(request);
    }
  }
}

TEST_CASE("what was allowed is a step of its own") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  fix(request, "micro_batch", "4");
  request.allowed = parse_allowed("precision:bf16-pure");
  check_steps(request);
  const Plan plan = make_plan(request);
  REQUIRE(plan.steps.size() > 1);
  CHECK(plan.steps[1].change == "--precision bf16-pure");
}

TEST_CASE("adapters of PEFT that were allowed are a step, with what follows from them") {
  PlanRequest request = request_for("llama", parse_cluster("1xH100-80GB"));
  fix(request, "runtime", "pytorch");
  fix(request, "modeling", "transformers");
  fix(request, "attention", "flash");
  request.spec = testing::llama_8b();
  request.allowed = parse_allowed("method:lora");
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  CHECK(plan.chosen->job.method == Method::lora);
  const auto is_of_method = [](const PlanStep& step) { return step.change.find("--method lora") != std::string::npos; };
  CHECK(std::ranges::any_of(plan.steps, is_of_method));
}

TEST_CASE("a plan that is the job as asked for has no steps") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  const Plan plan = make_plan(request);
  for (const JobField& field : job_fields()) {
    const bool is_set = field.name == "seq_len" || field.name == "global_batch";
    const std::string value = field.get(plan.chosen->job);
    if (!is_set && !value.empty()) fix(request, std::string(field.name), value);
  }
  check_steps(request);
  CHECK(make_plan(request).steps.empty());
}

}  // namespace vramfit
