// Choices that change what the allocator reserves and nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "estimator/rank_estimate.h"
#include "job/fields/job_fields.h"
#include "model_specs/catalog.h"
#include "planner/search/search.h"
#include "program/make_program.h"
#include "program/readers/peaks.h"
#include "program/stages/adapters.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::all_timed;
using testing::fix;
using testing::request_for;

namespace {

/// Four layers of Llama-3.2-1B under transformers' Trainer, one sequence at a time.
PlanRequest trainer_request() {
  PlanRequest request = request_for("llama", parse_cluster("1xA100-80GB"));
  request.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.2-1B"));
  request.spec.num_hidden_layers = 4;
  request.names_other_clusters = false;
  for (const auto& [field, value] : {std::pair{"runtime", "pytorch"}, std::pair{"modeling", "transformers"},
                                     std::pair{"attention", "flash"}, std::pair{"micro_batch", "1"}}) {
    fix(request, field, value);
  }
  request.job.sequence = 2048;
  request.job.global_batch = 1;
  request = testing::resolved(request);
  return request;
}

}  // namespace

TEST_CASE("expandable segments are taken where PyTorch's default leaves too many gaps, and only there") {
  PlanRequest request = trainer_request();
  Evaluator evaluator(request);
  const std::vector<Option> options = all_timed(evaluator, enumerate_jobs(request));
  std::vector<Bytes> needs;
  for (const Option& option : options) {
    const Estimate& estimate = evaluator.estimate_of(option.job);
    needs.push_back(upper_bound(estimate.ranks.front(), estimate.job, request.cluster));
  }
  int expanded = 0, usual = 0;
  for (const Bytes memory : needs) {
    CAPTURE(memory.n);
    request.cluster.card.memory = memory;
    const auto first = std::ranges::find_if(needs, [&](Bytes need) { return need <= memory; });
    const Job& fastest = options[static_cast<std::size_t>(first - needs.begin())].job;
    const Plan plan = make_plan(request);
    REQUIRE(plan.chosen);
    CHECK(job_as_flags(plan.chosen->job, fastest) == "");
    CHECK(plan.search.configurations == static_cast<std::int64_t>(options.size()));
    (plan.chosen->job.allocator == "expandable" ? expanded : usual) += 1;
  }
  CHECK(expanded > 0);
  CHECK(usual > 0);
}

TEST_CASE("an allocator that was set is kept, and the engine's stays what it is by default") {
  PlanRequest request = trainer_request();
  const auto allocators = [](const PlanRequest& of) {
    std::vector<std::string> found;
    for (const Job& job : enumerate_jobs(of)) found.push_back(job.allocator);
    std::ranges::sort(found);
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  };
  CHECK(allocators(request) == std::vector<std::string>{"expandable", "native"});
  fix(request, "allocator", "native");
  CHECK(allocators(request) == std::vector<std::string>{"native"});
  CHECK(allocators(request_for("llama", parse_cluster("1xA100-40GB"))) == std::vector<std::string>{"expandable"});
}

TEST_CASE("the engine allocates gradients first where they fit beside fewer gaps alone, and no one set the allocator") {
  PlanRequest request = request_for("llama", parse_cluster("1xH200-141GB"));
  request.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  request.job.sequence = 4096;
  request.job.global_batch = 1;
  request.names_other_clusters = false;
  for (const auto& [field, value] : {std::pair{"precision", "bf16-pure"}, std::pair{"checkpointing", "full"},
                                     std::pair{"loss", "full"}, std::pair{"offload", "none"}}) {
    fix(request, field, value);
  }
  request = testing::resolved(request);
  Evaluator evaluator(request);
  const auto need = [&](const char* allocator) {
    Job job = request.job;
    job.allocator = allocator;
    const Estimate& estimate = evaluator.estimate_of(job);
    return upper_bound(estimate.ranks.front(), estimate.job, request.cluster);
  };
  const Bytes usual = need("expandable"), first = need("gradients-first");
  CHECK(usual - first > 400 * kMiB);
  const auto chosen_in = [&](Bytes memory) {
    PlanRequest smaller = request;
    smaller.cluster.card.memory = memory;
    const Plan plan = make_plan(smaller);
    return plan.chosen ? plan.chosen->job.allocator : "none";
  };
  CHECK(chosen_in(usual) == "expandable");
  CHECK(chosen_in(usual - kMiB) == "gradients-first");
  CHECK(chosen_in(first) == "gradients-first");
  CHECK(chosen_in(first - kMiB) == "none");
  fix(request, "allocator", "expandable");
  CHECK(chosen_in(first) == "none");
}

TEST_CASE("fused AdamW is the fastest form, and the smallest but for a count of steps, so a search has no other") {
  PlanRequest request = trainer_request();
  const Graph graph = training_graph(request.spec, request.job);
  const auto requested = [&](const Job& job) {
    return folded_peaks(program::make_program({.graph = graph,
                                               .job = job,
                                               .device = request.cluster.card.device,
                                               .coords = {},
                                               .run = {},
                                               .labels = false}),
                        Bytes{1})
        .requested;
  };
  for (const char* checkpointing : {"none", "full"}) {
    fix(request, "checkpointing", checkpointing);
    Job fused = request.job, foreach = request.job;
    job_field_named("optimizer").set(fused, "adamw:fused");
    job_field_named("optimizer").set(foreach, "adamw:foreach");
    Evaluator evaluator(request);
    CHECK(evaluator.timed(fused).tokens_per_second >= evaluator.timed(foreach).tokens_per_second);
    const auto parameters = static_cast<std::int64_t>(graph.parameters.size());
    CHECK(requested(fused) <=
          requested(foreach) + parameters * Bytes{512});  // which is on the card, for each parameter
  }
}

TEST_CASE("a faster choice of the engine that fails by its fragments alone names the arena, with which it fits") {
  PlanRequest request = request_for("llama", parse_cluster("8xH100-80GB@30GiB"));
  request.spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  request.job.sequence = 4096;
  request.job.global_batch = 64;
  const Plan plan = make_plan(request);
  const auto named = std::ranges::find_if(plan.alternatives, [](const Candidate& other) {
    return other.why.find("fragments, which --allocator arena avoids") != std::string::npos;
  });
  REQUIRE(named != plan.alternatives.end());
  CHECK(worst_total(named->estimate) > request.cluster.card.memory);
  Job packed = named->job;
  packed.allocator = "arena";
  Evaluator evaluator(request);
  CHECK(worst_total(evaluator.estimate_of(packed)) <= request.cluster.card.memory);
  for (const Candidate& other : plan.alternatives) {
    if (other.why.find("--allocator arena") == std::string::npos) continue;
    CHECK(other.tokens_per_second > plan.chosen->tokens_per_second);
  }
}

}  // namespace vramfit
