#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "planner/plan.h"
#include "planner/search/changes.h"
#include "planner/search/search.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::cpu_ranks;
using testing::fix;
using testing::request_for;

TEST_CASE("adapters are a last resort where they are allowed, and offered where nothing else fits") {
  PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  fix(request, "precision", "fp32");
  fix(request, "prefetch", "backward=post,forward=1,limit=0");
  const auto with_adapters = [](const Plan& plan) {
    return std::ranges::find(plan.alternatives, std::vector<std::string>{"method:lora"}, &Candidate::needs);
  };
  // Whole training fits, so it is the plan.
  for (const char* kind : {"", "any", "method", "method:lora"}) {
    CAPTURE(kind);
    request.allowed = parse_allowed(kind);
    const Plan plan = make_plan(request);
    REQUIRE(plan.chosen);
    CHECK(plan.chosen->job.method == Method::full);
    const auto faster = with_adapters(plan);
    CHECK((faster != plan.alternatives.end()) == !request.allowed.kinds.empty());
    if (faster != plan.alternatives.end()) CHECK(faster->tokens_per_second > plan.chosen->tokens_per_second);
  }
  // It doesn't.
  request.allowed = {};
  Evaluator evaluator(request);
  Bytes smallest = kGiB;
  for (const Job& job : enumerate_jobs(request)) smallest = std::min(smallest, worst_total(evaluator.estimate_of(job)));
  request.cluster.card.memory = smallest - Bytes{4096};
  const Plan refused = make_plan(request);
  CHECK_FALSE(refused.chosen);
  CHECK(refused.why.find("with --allow method:lora it would fit at") != std::string::npos);
  CHECK(with_adapters(refused) != refused.alternatives.end());
  for (const auto& [kind, method] : {std::pair{"method", Method::lora}, std::pair{"method:qlora", Method::qlora}}) {
    request.allowed = parse_allowed(kind);
    const Plan allowed = make_plan(request);
    REQUIRE(allowed.chosen);
    CHECK(allowed.chosen->job.method == method);
    CHECK(allowed.chosen->job.lora.rank == 8);
    CHECK(allowed.chosen->job.precision.name == "fp32");
    CHECK(allowed.chosen->job.quantization == (method == Method::qlora ? "nf4-double" : "none"));
  }
  // A method that was set stays, except where the kind is named.
  fix(request, "method", "full");
  request.allowed = parse_allowed("any");
  const Plan kept = make_plan(request);
  CHECK((!kept.chosen || kept.chosen->job.method == Method::full));
  CHECK_THROWS_AS(parse_allowed("method:loro"), InputError);
}

}  // namespace vramfit
