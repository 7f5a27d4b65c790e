#include "planner/answer/larger_cluster.h"

#include <doctest/doctest.h>
#include <memory>

#include "base/error.h"
#include "base/text/units.h"
#include "job/cluster/host_memory.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "model_specs/catalog.h"
#include "tests/planner/requests.h"

namespace vramfit {

namespace {

PlanRequest request_on(const std::string& gpus) {
  PlanRequest request = testing::catalog_request("meta-llama/Llama-3.2-1B", gpus);
  testing::fix(request, "seq_len", "1024");
  return request;
}

std::shared_ptr<ModelStages> new_model(const PlanRequest& request) {
  return std::make_shared<ModelStages>(request.spec, request.cluster.card.device);
}

}  // namespace

TEST_CASE("where nothing fits, the smallest cluster of more such GPUs that has a plan is named, with that plan") {
  const Plan none = make_plan(request_on("1xRTX4090@8GiB"));
  REQUIRE_FALSE(none.chosen);
  REQUIRE(none.larger_cluster);
  const OtherCluster& larger = *none.larger_cluster;
  CHECK(larger.gpus == "4xRTX4090@8GiB");
  CHECK(none.why.find("4xRTX4090@8GiB would do") != std::string::npos);
  CHECK_FALSE(make_plan(request_on("2xRTX4090@8GiB")).chosen);
  const Plan there = make_plan(request_on(larger.gpus));
  REQUIRE(there.chosen);
  CHECK(there.chosen->tokens_per_second == larger.tokens_per_second);
  CHECK(job_as_flags(there.chosen->job, unresolved_job()) == job_as_flags(larger.job, unresolved_job()));
}

TEST_CASE("what other clusters are searched with may come from the search before: graphs and tapes know no cluster") {
  PlanRequest request = request_on("1xRTX4090@8GiB");
  const auto model = new_model(request);
  for (int time = 0; time < 2; ++time) {
    const std::optional<OtherCluster> shared = larger_cluster(request, model),
                                      alone = larger_cluster(request, new_model(request));
    REQUIRE(shared);
    REQUIRE(alone);
    CHECK(shared->gpus == alone->gpus);
    CHECK(shared->total == alone->total);
    CHECK(shared->tokens_per_second == alone->tokens_per_second);
    CHECK(job_as_flags(shared->job, unresolved_job()) == job_as_flags(alone->job, unresolved_job()));
  }
}

TEST_CASE("where nobody said how much host memory there is, an answer without a plan says what some would make of it") {
  PlanRequest request = request_on("4xRTX4090@4GiB");
  const std::string offer = " of host memory a node (--host-memory) it would fit at ";
  CHECK(make_plan(request).why.find(offer) != std::string::npos);
  const std::vector<OffloadedPlan> found = with_host_memory(request, new_model(request));
  REQUIRE(found.size() == 1);
  const OffloadedPlan* const offloaded = &found.front();
  request.cluster.host_memory = offloaded->host;
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  CHECK_FALSE(plan.chosen->job.offload.empty());
  CHECK(plan.chosen->estimate.host_bytes <= offloaded->host);

  request.cluster.host_memory = {};
  testing::fix(request, "offload", "none");
  CHECK(make_plan(request).why.find(offer) == std::string::npos);
}

namespace {

/// Follows the answer's last hint: "with --allow method:qlora and 38.35 GiB of host memory a node".
PlanRequest with_hinted_host(PlanRequest request, const Plan& none) {
  const std::size_t end = none.why.rfind(" of host memory a node");
  REQUIRE(end != std::string::npos);
  const std::vector<std::string> words = split_list(none.why.substr(0, end), ' ');
  const std::size_t size = words.size() - 2;
  set_host_memory(request.cluster, words[size] + words[size + 1]);
  if (words[size - 1] == "and") request.allowed = parse_allowed(words[size - 2]);
  return request;
}

}  // namespace

TEST_CASE("hints of host memory that are followed as they are printed give a plan") {
  for (const char* seq_len : {"512", "1536"}) {
    for (const char* gpus : {"4xRTX4090@3GiB", "1xRTX4090@4GiB"}) {
      CAPTURE(seq_len);
      CAPTURE(gpus);
      PlanRequest request = request_on(gpus);
      testing::fix(request, "seq_len", seq_len);
      const Plan none = make_plan(request);
      REQUIRE_FALSE(none.chosen);
      CAPTURE(none.why);
      CHECK(make_plan(with_hinted_host(request, none)).chosen);
    }
  }
}

TEST_CASE("where host memory alone is missing, the answer begins with the least that is known to do") {
  PlanRequest request = testing::catalog_request("meta-llama/Llama-3.1-8B", "4xRTX4090,host=93GiB");
  const Plan none = make_plan(request);
  REQUIRE_FALSE(none.chosen);
  CAPTURE(none.why);
  const std::vector<OffloadedPlan> found = with_host_memory(request, new_model(request));
  REQUIRE_FALSE(found.empty());
  CHECK(none.none->needs.starts_with(format_gib(found.front().host)));
  REQUIRE(none.closest);
  CHECK(job_as_flags(none.closest->job, unresolved_job()) == job_as_flags(found.front().job, unresolved_job()));
}

TEST_CASE("what is needed elsewhere is said with the changes that are allowed") {
  PlanRequest request = request_on("1xRTX4090@4GiB");
  request.allowed = parse_allowed("precision");
  const Plan none = make_plan(request);
  REQUIRE_FALSE(none.chosen);
  CAPTURE(none.why);
  CHECK(make_plan(with_hinted_host(request, none)).chosen);
  REQUIRE(none.larger_cluster);
  request.cluster = parse_cluster(none.larger_cluster->gpus);
  const Plan there = make_plan(request);
  REQUIRE(there.chosen);
  CHECK(worst_total(there.chosen->estimate) == none.larger_cluster->total);
}

TEST_CASE(
    "a cluster that the batch doesn't divide among is left out, and no number of GPUs holds what one can't share") {
  PlanRequest request = request_on("1xRTX4090@8GiB");
  testing::fix(request, "global_batch", "1");
  CHECK_FALSE(larger_cluster(request, new_model(request)));
  request = request_on("1xRTX4090@8GiB");
  testing::fix(request, "sharding", "no-shard");
  CHECK_FALSE(larger_cluster(request, new_model(request)));
  request.names_other_clusters = false;
  CHECK_FALSE(make_plan(request).larger_cluster);
}

TEST_CASE("a part of the cluster that is faster alone is named, as long as half of it is faster still") {
  const auto request_for_gpt2 = [](const std::string& gpus) {
    PlanRequest request = request_on(gpus);
    request.spec = catalog_spec(*find_in_catalog("openai-community/gpt2"));
    request.job.sequence = 128;
    testing::fix(request, "global_batch", "16");
    return request;
  };
  const Plan plan = make_plan(request_for_gpt2("2x4xRTX4090"));
  REQUIRE(plan.chosen);
  REQUIRE(plan.smaller_cluster);
  const OtherCluster& smaller = *plan.smaller_cluster;
  CHECK(smaller.tokens_per_second > plan.chosen->tokens_per_second);
  const Plan there = make_plan(request_for_gpt2(smaller.gpus));
  REQUIRE(there.chosen);
  CHECK(there.chosen->tokens_per_second == smaller.tokens_per_second);
  CHECK_FALSE(there.smaller_cluster);
  // A job that gains by all of its GPUs.
  PlanRequest large = request_on("4xRTX4090");
  testing::fix(large, "global_batch", "64");
  const Plan whole = make_plan(large);
  REQUIRE(whole.chosen);
  CHECK_FALSE(whole.smaller_cluster);
  PlanRequest alone = request_for_gpt2("2x4xRTX4090");
  alone.names_other_clusters = false;
  CHECK_FALSE(make_plan(alone).smaller_cluster);
}

}  // namespace vramfit
