#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/conflict.h"
#include "base/error.h"
#include "planner/plan.h"
#include "planner/search/changes.h"
#include "planner/search/search.h"
#include "tests/planner/requests.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::cpu_ranks;
using testing::fix;
using testing::request_for;

TEST_CASE("adapters are a last resort where they are allowed, and offered where nothing else fits") {
  PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  fix(request, "precision", "fp32");
  fix(request, "prefetch", "backward=post,forward=1,limit=0");
  const auto with_adapters = [](const Plan& plan) {
    return std::ranges::find_if(plan.alternatives, [](const Candidate& candidate) {
      return std::ranges::find(candidate.needs, "method:lora") != candidate.needs.end();
    });
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

TEST_CASE("DeepSpeed shards on one card, too, and is the only one that plans with sharded states alone") {
  for (const char* gpus : {"1xH100-80GB", "2xH100-80GB"}) {
    CAPTURE(gpus);
    PlanRequest request = request_for("llama", parse_cluster(gpus));
    fix(request, "runtime", "deepspeed");
    fix(request, "modeling", "transformers");
    const Plan plan = make_plan(request);
    REQUIRE(plan.chosen);
    CHECK(plan.chosen->job.sharding != "no-shard");
    CHECK(std::holds_alternative<ReshardByDefault>(plan.chosen->job.reshard));
    for (const char* sharding : {"shard-optimizer", "shard-grad-op", "full-shard"}) {
      PlanRequest with_stage = request;
      fix(with_stage, "sharding", sharding);
      const Plan planned = make_plan(with_stage);
      REQUIRE(planned.chosen);
      CHECK(planned.chosen->job.sharding == sharding);
    }
  }
}

TEST_CASE(
    "frozen weights get few bits where that is allowed, and are refused with what would do where none is frozen") {
  PlanRequest request = request_for("llama", parse_cluster("1x16GB"));
  request.spec = testing::llama_8b();
  request.job.sequence = 1024;
  request.job.global_batch = 1;
  for (const char* kind : {"quantization", "quantization:int8"}) {
    request.allowed = parse_allowed(kind);
    CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("--method lora or --freeze"), InputError);
  }
  request.allowed = parse_allowed("any");  // nothing that was asked for is missing
  CHECK_NOTHROW(make_plan(request));
  request.allowed = {};
  fix(request, "method", "lora");
  const Plan refused = make_plan(request);
  CHECK_FALSE(refused.chosen);
  CHECK(refused.why.find("with --allow quantization:int8 it would fit at") != std::string::npos);
  for (const auto& [kind, formats] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"quantization", {"int8"}}, {"quantization:nf4", {"nf4"}}, {"any", {"int8"}}}) {
    CAPTURE(kind);
    request.allowed = parse_allowed(kind);
    const Plan allowed = make_plan(request);
    REQUIRE(allowed.chosen);
    CHECK(allowed.chosen->job.method == Method::lora);
    CHECK(std::ranges::count(formats, allowed.chosen->job.quantization) == 1);
  }
  request.cluster = parse_cluster("1xH100-80GB");
  request.allowed = parse_allowed("quantization");
  const Plan roomy = make_plan(request);
  REQUIRE(roomy.chosen);
  CHECK(roomy.chosen->job.quantization == "none");
  CHECK_THROWS_AS(parse_allowed("quantization:none"), InputError);
  CHECK_THROWS_AS(parse_allowed("quantization:int4"), InputError);
}

TEST_CASE("QLoRA is not offered where --freeze leaves all matrices of layers trained") {
  PlanRequest request = request_for("llama", parse_cluster("1xH100-80GB@0.5GiB"));
  fix(request, "freeze", "embeddings");
  const Plan none = make_plan(request);
  CHECK_FALSE(none.chosen);
  CHECK(none.why.find("qlora") == std::string::npos);
  request.allowed = parse_allowed("method:qlora");
  CHECK_THROWS_AS(make_plan(request), Conflict);
}

TEST_CASE("trained weights get 8 bits on the card where that is named and host memory holds masters") {
  PlanRequest request = request_for("llama", parse_cluster("1x16GB,host=128GiB"));
  request.spec = testing::llama_8b();
  request.job.sequence = 1024;
  request.job.global_batch = 1;
  fix(request, "precision", "bf16-pure");
  fix(request, "offload", "optimizer+gradients");
  CHECK_FALSE(make_plan(request).chosen);
  request.allowed = parse_allowed("quantization:fp8");
  const Plan allowed = make_plan(request);
  REQUIRE(allowed.chosen);
  CHECK(allowed.chosen->job.quantization == "fp8");
  std::erase(request.fixed, "offload");
  request.job.offload = {};
  const Plan free = make_plan(request);  // nothing on the card but what a gather needs is less
  REQUIRE(free.chosen);
  CHECK(free.chosen->job.quantization == "none");
  fix(request, "quantization", "fp8");
  request.cluster.card.memory = worst_total(free.chosen->estimate) + Bytes{1 << 26};
  const Plan coded = make_plan(request);  // codes go along with parameters that leave the card
  REQUIRE(coded.chosen);
  CHECK(coded.chosen->job.quantization == "fp8");
  std::erase(request.fixed, "quantization");
  request.job.quantization = "none";
  request.allowed = {};
  request.cluster.host_memory = {};
  CHECK_FALSE(make_plan(request).chosen);
  request.cluster = parse_cluster("1xH100-80GB");  // has room for whole weights, and more for codes
  fix(request, "offload", "none");
  REQUIRE(make_plan(request).chosen);
  fix(request, "quantization", "fp8");
  CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("--quantization fp8"), NotModelled);
}

TEST_CASE("8 bits for trained weights that are named are refused where no host memory can have masters") {
  PlanRequest request = request_for("llama", parse_cluster("1x16GB"));
  request.spec = testing::llama_8b();
  const auto is_refused = [&] {
    CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("only if host memory has their masters"), Conflict);
  };
  request.allowed = parse_allowed("quantization:fp8");
  is_refused();
  request.allowed = parse_allowed("quantization:fp8,optimizer");
  is_refused();
  request.cluster = parse_cluster("1x16GB,host=128GiB");
  fix(request, "offload", "activations");
  is_refused();
  std::erase(request.fixed, "offload");
  request.job.offload = {};
  CHECK_NOTHROW(make_plan(request));
  fix(request, "runtime", "pytorch");  // whose rules have no such matrices, whatever the host has
  fix(request, "modeling", "transformers");
  CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("--method qlora with nf4"), Conflict);
  std::erase_if(request.fixed, [](const std::string& field) { return field == "runtime" || field == "modeling"; });
  request.job.runtime = Runtime::vramfit;
  request.job.modeling = Modeling::vramfit;
  request.cluster = parse_cluster("1x16GB");  // adapters leave matrices frozen, whose masters nobody needs
  request.allowed = parse_allowed("quantization:fp8,method:lora");
  const Plan coded = make_plan(request);
  REQUIRE(coded.chosen);
  CHECK(coded.chosen->job.method == Method::lora);
}

TEST_CASE("a smaller global batch is taken where it is faster or alone fits, another one by name") {
  PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  fix(request, "prefetch", "backward=post,forward=1,limit=0");
  request.job.global_batch = 16;
  Evaluator evaluator(request);
  Bytes with_one = kGiB, with_several = kGiB;
  for (const Job& job : enumerate_jobs(request)) {
    with_several = std::min(with_several, worst_total(evaluator.estimate_of(job)));
  }
  PlanRequest smallest = request;
  smallest.job.global_batch = 2;
  Evaluator least(smallest);
  for (const Job& job : enumerate_jobs(smallest)) with_one = std::min(with_one, worst_total(least.estimate_of(job)));
  REQUIRE(with_one < with_several);
  request.cluster.card.memory = with_several - Bytes{4096};
  const Plan refused = make_plan(request);
  CHECK_FALSE(refused.chosen);
  CHECK(refused.why.find("with --allow global-batch:") != std::string::npos);
  for (const char* kind : {"global-batch", "global-batch:2,global-batch:4"}) {
    request.allowed = parse_allowed(kind);
    const Plan allowed = make_plan(request);
    REQUIRE(allowed.chosen);
    CHECK(allowed.chosen->job.global_batch < 16);
  }
  request.allowed = parse_allowed("any");  // keeps what was set
  const Plan kept = make_plan(request);
  CHECK((!kept.chosen || kept.chosen->job.global_batch == 16));

  request.cluster.card.memory = kGiB;
  request.allowed = parse_allowed("global-batch:32");
  const Plan larger = make_plan(request);
  REQUIRE(larger.chosen);
  CHECK(larger.chosen->job.global_batch == 32);
  fix(request, "micro_batch", "2");
  request.allowed = parse_allowed("global-batch:6");
  CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("--global-batch 6"), InputError);
  request.job.global_batch = 2;
  request.job.micro_batch = 0;
  request.fixed = {"global_batch"};
  request.allowed = parse_allowed("global-batch");
  CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("none is smaller"), InputError);
}

}  // namespace vramfit
