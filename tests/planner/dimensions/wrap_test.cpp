#include <doctest/doctest.h>

#include <algorithm>

#include "job/resolve_job.h"
#include "planner/dimensions/dimensions.h"
#include "planner/plan.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::fix;

namespace {

PlanRequest request_of(const char* model, const char* gpus, std::int64_t sequence) {
  PlanRequest request = testing::catalog_request(model, gpus);
  request.job.global_batch = request.cluster.cards();
  request.job.sequence = sequence;
  return request;
}

/// Choices of a job that shards over `shards` ranks.
std::size_t choices_of(const PlanRequest& request, std::int64_t shards) {
  const std::span<const Dimension> rows = dimensions();
  const auto row = std::ranges::find(rows, "wrap", &Dimension::name);
  const SearchSpace space{
      .spec = request.spec, .cluster = request.cluster, .efficiency = efficiency_of(request.cluster)};
  std::vector<std::string> notes;
  Job job = resolve_job(request.job, request.spec, request.cluster, notes);
  job.mesh = {.replicate = request.cluster.cards() / shards, .shard = shards};
  job.reshard = ReshardLastKept{};
  return row->choices(job, space).size();
}

}  // namespace

TEST_CASE("groups of layers are chosen where nothing hides the latency of gathers") {
  PlanRequest request = request_of("meta-llama/Llama-3.2-1B", "8x8xH100-80GB", 512);
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  REQUIRE(std::holds_alternative<WrapGroups>(plan.chosen->job.wrap));
  request.job = plan.chosen->job;
  fix(request, "wrap", "layer");
  const Plan by_layer = make_plan(request);
  REQUIRE(by_layer.chosen);
  CHECK(plan.chosen->tokens_per_second > 1.02 * by_layer.chosen->tokens_per_second);
}

TEST_CASE("groups of layers are not searched where a gather hardly has latency") {
  CHECK(choices_of(request_of("meta-llama/Llama-3.1-70B", "2x8xH200", 8192), 16) == 1);
  CHECK(choices_of(request_of("meta-llama/Llama-3.1-70B", "64x8xH100-80GB", 8192), 512) == 3);
  CHECK(choices_of(request_of("meta-llama/Llama-3.1-8B", "8xH100-80GB", 8192), 8) == 3);
  CHECK(choices_of(request_of("meta-llama/Llama-3.1-8B", "8xH100-80GB", 8192), 1) == 1);
}

}  // namespace vramfit
