// What the search covers, and at what price.
#include "planner/search/search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/text/digits_apart.h"
#include "estimator/rank_estimate.h"
#include "job/fields/job_field_text.h"
#include "job/fields/job_fields.h"
#include "model_specs/catalog.h"
#include "planner/answer/plan_json.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::cpu_ranks;
using testing::fix;
using testing::request_for;

TEST_CASE("micro-batch x accumulation x data ranks is the global batch in every configuration") {
  for (const std::int64_t ranks : {1, 2, 4}) {
    const PlanRequest request = request_for("llama", cpu_ranks(ranks, kGiB));
    for (const Job& job : enumerate_jobs(request)) {
      CHECK(job.micro_batch * job.accumulation * data_ranks(job) == 8);
      CHECK(data_ranks(job) == ranks);
    }
  }
}

TEST_CASE("hybrid sharding is searched over every factorization of the cluster, whatever its nodes") {
  PlanRequest request = request_for("llama", parse_cluster("2x6xH100-80GB"));
  request.job.global_batch = 24;
  const auto shards_of = [&](const std::string& sharding) {
    std::set<std::int64_t> shards;
    for (const Job& job : enumerate_jobs(request)) {
      if (job.sharding == sharding) shards.insert(job.mesh.shard);
      CHECK(job.mesh.replicate * job.mesh.shard == 12);
    }
    return shards;
  };
  CHECK(shards_of("hybrid-shard") == std::set<std::int64_t>{2, 3, 4, 6});
  CHECK(shards_of("hybrid-shard-zero2") == std::set<std::int64_t>{2, 3, 4, 6});
  CHECK(shards_of("full-shard") == std::set<std::int64_t>{12});
  CHECK(shards_of("no-shard") == std::set<std::int64_t>{1});
  fix(request, "sharding", "hybrid-shard");
  CHECK(shards_of("hybrid-shard") == std::set<std::int64_t>{2, 3, 4, 6});
  CHECK(shards_of("full-shard").empty());
  fix(request, "mesh", "replicate=3,shard=4");
  CHECK(shards_of("hybrid-shard") == std::set<std::int64_t>{4});
}

TEST_CASE("on one node, hybrid sharding that was asked for may shard over all of it, as PyTorch's does") {
  PlanRequest request = request_for("llama", parse_cluster("1x6xH100-80GB"));
  request.job.global_batch = 24;
  const auto shards = [&] {
    std::set<std::int64_t> found;
    for (const Job& job : enumerate_jobs(request)) {
      if (job.sharding == "hybrid-shard") found.insert(job.mesh.shard);
    }
    return found;
  };
  CHECK(shards() == std::set<std::int64_t>{2, 3});
  fix(request, "sharding", "hybrid-shard");
  CHECK(shards() == std::set<std::int64_t>{2, 3, 6});
}

TEST_CASE("where the loss has chunks by default, full loss and fewer chunks are searched unless the head is small") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("Qwen/Qwen3-0.6B"));
  const ModelSpec large = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  PlanRequest request{
      .spec = spec, .job = unresolved_job(), .fixed = {}, .cluster = parse_cluster("2xH100-80GB"), .allowed = {}};
  fix(request, "sharding", "full-shard");
  fix(request, "global_batch", "8");
  const auto losses_of = [&](std::int64_t tokens) {
    std::set<std::string> losses;
    for (const Job& job : enumerate_jobs(request)) {
      if (job.micro_batch * job.sequence == tokens) losses.insert(job_field_named("loss").get(job));
    }
    return losses;
  };
  // Full loss or not, and chunks, each with gradients made in backward and in forward.
  const auto losses_with = [](bool has_full, const std::vector<int>& chunks) {
    std::set<std::string> losses;
    if (has_full) losses.insert("full");
    for (const int each : chunks) {
      losses.insert(fmt::format("chunked:{}", each));
      losses.insert(fmt::format("chunked-forward:{}", each));
    }
    return losses;
  };
  fix(request, "seq_len", "1024");
  CHECK(losses_of(1024) == losses_with(true, {2, 4, 8, 16, 32, 64}));
  CHECK(losses_of(4096) == losses_with(true, {2, 4, 8, 16, 32, 64}));
  fix(request, "seq_len", "16384");
  CHECK(losses_of(16384) == losses_with(true, {2, 4, 8, 16, 32, 64}));
  request.spec = large;
  CHECK(losses_of(16384) == losses_with(false, {16, 32, 64}));
  fix(request, "loss", "full");
  CHECK(losses_of(16384) == std::set<std::string>{"full"});
}

TEST_CASE("every configuration that is searched is modelled") {
  const PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  Evaluator evaluator(request);
  const std::vector<Job> jobs = enumerate_jobs(request);
  constexpr std::size_t kEvery = 7;  // rows have two to six choices, so each choice is among them
  for (std::size_t i = 0; i < jobs.size(); i += kEvery) {
    CAPTURE(job_as_flags(jobs[i], unresolved_job()));
    CHECK(evaluator.estimate_of(jobs[i]).verdict != Verdict::not_modelled);
  }
}

TEST_CASE("a trial says of a job what its estimate says, on a card that holds half of them") {
  for (const std::string allocator : {"expandable", "native", "per_process_memory_fraction=0.99"}) {
    PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
    fix(request, "allocator", allocator);
    fix(request, "seq_len", "4096");
    fix(request, "global_batch", "1024");
    const std::vector<Job> jobs = enumerate_jobs(request);
    std::vector<Bytes> bounds;
    for (std::size_t i = 0; i < jobs.size(); i += jobs.size() / 60 + 1) {
      Evaluator evaluator(request);
      const Estimate& estimate = evaluator.estimate_of(jobs[i]);
      bounds.push_back(upper_bound(estimate.ranks.front(), estimate.job, request.cluster));
    }
    std::ranges::sort(bounds);
    request.cluster.card.memory = bounds[bounds.size() / 2];
    Evaluator evaluator(request), trials(request);
    std::set<Verdict> verdicts;
    for (std::size_t i = 0; i < jobs.size(); i += jobs.size() / 60 + 1) {
      CAPTURE(job_as_flags(jobs[i], unresolved_job()));
      const Estimate& estimate = evaluator.estimate_of(jobs[i]);
      const Trial& trial = trials.trial_of(jobs[i]);
      CHECK(trial.is_modelled == (estimate.verdict != Verdict::not_modelled));
      CHECK(trial.fits == (estimate.verdict == Verdict::fits));
      CHECK(trial.total == worst_total(estimate));
      verdicts.insert(estimate.verdict);
    }
    CHECK(verdicts.contains(Verdict::fits));
    CHECK(verdicts.size() > 1);
    CHECK(trials.estimates() == evaluator.estimates());
  }
}

TEST_CASE("what fails early doesn't fit, and is looked for only once another job has failed in its first step") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  fix(request, "sharding", "full-shard");
  fix(request, "micro_batch", "1");
  fix(request, "seq_len", "4096");
  const std::vector<Job> jobs = enumerate_jobs(request);
  std::vector<Bytes> bounds;
  constexpr std::size_t kEvery = 5;
  for (std::size_t i = 0; i < jobs.size(); i += kEvery) {
    const Estimate estimate = Evaluator(request).estimate_of(jobs[i]);
    bounds.push_back(upper_bound(estimate.ranks.front(), estimate.job, request.cluster));
  }
  std::ranges::sort(bounds);
  request.cluster.card.memory = bounds[bounds.size() / 2];
  Evaluator evaluator(request), exact(request);
  int early = 0, fitting = 0;
  bool has_failed = false;
  for (std::size_t i = 0; i < jobs.size(); i += kEvery) {
    CAPTURE(job_as_flags(jobs[i], unresolved_job()));
    const bool fits = exact.trial_of(jobs[i]).fits;
    const bool fails_early = evaluator.look_early(jobs[i]).is_too_much;
    CHECK_FALSE((fits && fails_early));
    CHECK((has_failed || !fails_early));
    early += fails_early ? 1 : 0;
    fitting += fits ? 1 : 0;
    if (!fails_early && !evaluator.attempt_to_fit(evaluator.timed(jobs[i])).fits) has_failed = true;
  }
  CHECK(early > 0);
  CHECK(fitting > 10);
}

TEST_CASE("what needs so much early has no smaller total") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  fix(request, "sharding", "full-shard");
  fix(request, "micro_batch", "1");
  fix(request, "seq_len", "4096");
  const std::vector<Job> jobs = enumerate_jobs(request);
  const auto model = std::make_shared<ModelStages>(request.spec, request.cluster.card.device);
  int early = 0;
  for (std::size_t i = 0; i < jobs.size(); i += 7) {
    CAPTURE(job_as_flags(jobs[i], unresolved_job()));
    Evaluator evaluator(request, model);
    const Bytes total = evaluator.trial_of(jobs[i]).total;
    const Bytes less = total - Bytes{(total - evaluator.outside(jobs[i])).n / 16};
    CHECK_FALSE(evaluator.look_early(jobs[i], less).is_too_much);  // none has failed in its first step
    CHECK_FALSE(evaluator.attempt(evaluator.requested(jobs[i]), less).rank);
    early += evaluator.look_early(jobs[i], less).is_too_much ? 1 : 0;
    CHECK_FALSE(evaluator.look_early(jobs[i], total + Bytes{1}).is_too_much);
  }
  CHECK(early > 10);
}

TEST_CASE("recomputing a part is chosen where it is the fastest that fits: every Nth block, or some ops of each") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-8B"));
  PlanRequest request{
      .spec = spec, .job = unresolved_job(), .fixed = {}, .cluster = parse_cluster("4xA100-40GB"), .allowed = {}};
  fix(request, "seq_len", "4096");
  fix(request, "global_batch", "4");
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  CHECK(is_selective(plan.chosen->job.checkpointing));
  double fastest_else = 0, fastest_every = 0;
  for (const std::string checkpointing : {"none", "full"}) {
    PlanRequest without = request;
    fix(without, "checkpointing", checkpointing);
    const Plan other = make_plan(without);
    if (other.chosen) fastest_else = std::max(fastest_else, other.chosen->tokens_per_second);
  }
  for (const std::int64_t n : {2, 3, 4, 6, 8, 11, 16}) {
    PlanRequest every = request;
    fix(every, "checkpointing", fmt::format("every:{}", n));
    const Plan other = make_plan(every);
    if (other.chosen) fastest_every = std::max(fastest_every, other.chosen->tokens_per_second);
  }
  MESSAGE("every:N is faster by ", 100 * (fastest_every / fastest_else - 1), " %, ",
          get_checkpointing(plan.chosen->job), " by ", 100 * (plan.chosen->tokens_per_second / fastest_else - 1), " %");
  CHECK(fastest_every > fastest_else);
  CHECK(plan.chosen->tokens_per_second > fastest_every);
}

TEST_CASE("a reduction goes on behind the backward pass where links are slow, if there is memory for it") {
  PlanRequest request = testing::catalog_request("meta-llama/Llama-3.1-8B", "8xRTX-4090");
  for (const auto& [field, value] :
       {std::pair{"seq_len", "4096"}, std::pair{"micro_batch", "1"}, std::pair{"sharding", "full-shard"},
        std::pair{"reshard", "last-kept"}, std::pair{"wrap", "layer"}, std::pair{"checkpointing", "full"},
        std::pair{"reshard_head", "off"}, std::pair{"prefetch", "backward=post,forward=1,limit=0"},
        std::pair{"loss", "chunked:16"}}) {
    fix(request, field, value);
  }
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  CHECK(plan.chosen->job.reduce_finish == ReduceFinish::end);
  request.cluster.card.memory = plan.chosen->estimate.ranks.front().upper_bound - Bytes{1};
  const Plan tighter = make_plan(request);
  REQUIRE(tighter.chosen);
  CHECK(tighter.chosen->job.reduce_finish == ReduceFinish::early);
  CHECK(tighter.chosen->tokens_per_second < plan.chosen->tokens_per_second);
  const std::size_t with_recomputation = enumerate_jobs(request).size();
  fix(request, "checkpointing", "none");
  CHECK(enumerate_jobs(request).size() < with_recomputation);
}

TEST_CASE("what cannot fit is settled by the bound, with few estimates, and the smallest need is still the smallest") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.1-70B"));
  const PlanRequest request{
      .spec = spec, .job = unresolved_job(), .fixed = {}, .cluster = parse_cluster("8xH100-80GB"), .allowed = {}};
  const Plan plan = make_plan(request);
  CHECK_FALSE(plan.chosen);
  CHECK(plan.search.configurations > 500);
  CHECK(plan.search.ruled_out == plan.search.configurations);
  CHECK(plan.search.estimates * 30 < plan.search.configurations);

  // A small model, so that all of the space can be estimated.
  const Bytes budget = 64 * kKiB;
  PlanRequest small = request_for("llama", cpu_ranks(2, budget));
  fix(small, "prefetch", "backward=post,forward=1,limit=0");
  Evaluator evaluator(small);
  Bytes smallest = kGiB;
  for (const Job& job : enumerate_jobs(small)) smallest = std::min(smallest, worst_total(evaluator.estimate_of(job)));
  const std::string needed = format_gib(smallest, digits_apart(smallest, budget));
  CHECK(make_plan(small).why.find(fmt::format("the smallest needs {} of", needed)) != std::string::npos);
}

TEST_CASE("configurations, bounds, times and estimates are told apart in the plan's JSON, and no space is cut") {
  const PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  const Plan plan = make_plan(request);
  CHECK(plan.search.configurations == static_cast<std::int64_t>(enumerate_jobs(request).size()));
  CHECK(plan.search.estimates < plan.search.times);
  CHECK(plan.search.times < plan.search.configurations);
  const std::string json = plan_to_json(request, plan);
  for (const std::string member : {"configurations", "ruled_out", "bounds", "times", "estimates", "seconds"}) {
    CHECK(json.find(fmt::format("\"{}\":", member)) != std::string::npos);
  }
}

}  // namespace vramfit
