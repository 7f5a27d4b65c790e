#include "planner/answer/not_considered.h"

#include <doctest/doctest.h>
#include <algorithm>

#include "tests/planner/requests.h"

namespace vramfit {

using testing::request_for;
using testing::resolved;

namespace {

bool names(const PlanRequest& request, std::string_view words) {
  return std::ranges::any_of(not_considered(request, {}),
                             [&](const std::string& each) { return each.find(words) != std::string::npos; });
}

}  // namespace

TEST_CASE("what was not considered is named with its flag until somebody names it") {
  PlanRequest request = resolved(request_for("llama", parse_cluster("2xH100-80GB")));
  request.names_host_memory = false;
  CHECK(names(request, "--allow precision, "));
  CHECK(names(request, "--host-memory"));
  CHECK(names(request, "--wrap size:N"));
  request.allowed.kinds["precision"] = {};
  CHECK_FALSE(names(request, "--allow precision, "));
  request.allowed.kinds.clear();
  Plan plan;
  plan.alternatives.push_back({.job = {}, .estimate = {}, .time = {}, .needs = {"precision:bf16-pure"}, .why = ""});
  request.names_host_memory = true;  // where there is no plan it was looked for
  for (const std::string& each : not_considered(request, plan)) {
    CHECK(each.find("--allow precision") == std::string::npos);
    CHECK(each.find("--host-memory") == std::string::npos);
  }
  request.fixed.emplace_back("precision");
  CHECK_FALSE(names(request, "--allow precision"));
  request.fixed.emplace_back("wrap");
  CHECK_FALSE(names(request, "--wrap size:N"));
  request.cluster.host_memory = 64 * kGiB;
  CHECK_FALSE(names(request, "--host-memory"));
}

TEST_CASE("CPU ranks have no other memory to offload to, and no allocator to choose") {
  const PlanRequest request = resolved(request_for("llama", parse_cluster("2xcpu-4GiB")));
  CHECK_FALSE(names(request, "--host-memory"));
  CHECK_FALSE(names(request, "--allocator"));
  CHECK(names(request, "--allow "));
}

}  // namespace vramfit
