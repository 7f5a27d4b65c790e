#include "planner/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "planner/answer/plan_json.h"
#include "planner/search/changes.h"
#include "planner/search/search.h"
#include "tests/planner/requests.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::all_timed;
using testing::cpu_ranks;
using testing::fix;
using testing::request_for;

namespace {

Bytes total_of(const Candidate& candidate) { return worst_total(candidate.estimate); }

// Budgets from far too little to plenty, and one in between for each step.
std::vector<Bytes> budgets() {
  std::vector<Bytes> list;
  for (std::int64_t kib = 256; kib <= std::int64_t{64} * 1024; kib = kib * 3 / 2) list.push_back(kib * kKiB);
  return list;
}

}  // namespace

TEST_CASE("with memory to spare the fastest configuration of all is chosen") {
  const PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  Evaluator evaluator(request);
  CHECK(plan.chosen->tokens_per_second == all_timed(evaluator, enumerate_jobs(request)).front().tokens_per_second);
}

TEST_CASE("what is chosen fits, and nothing of the space that fits is faster, whatever the budget") {
  for (const std::string model : {"llama", "gpt2", "bert"}) {
    const auto request_with = [&](Bytes budget) {
      PlanRequest request = request_for(model, cpu_ranks(2, budget));
      fix(request, "reshard_head", "off");
      fix(request, "reduce_finish", "early");
      fix(request, "prefetch", "backward=post,forward=1,limit=0");  // so that all of the space can be tried
      return request;
    };
    const PlanRequest any_budget = request_with(kGiB);
    Evaluator any(any_budget);
    const std::vector<Option> fastest_first = all_timed(any, enumerate_jobs(any_budget));
    for (const Bytes budget : budgets()) {
      CAPTURE(model);
      CAPTURE(budget.n);
      const PlanRequest request = request_with(budget);
      const Plan plan = make_plan(request);
      Evaluator evaluator(request);
      for (const Option& option : fastest_first) {
        if (plan.chosen && option.tokens_per_second <= plan.chosen->tokens_per_second) break;
        CHECK_FALSE(evaluator.trial_of(option.job).fits);
      }
      if (plan.chosen) CHECK(plan.chosen->estimate.verdict == Verdict::fits);
    }
  }
}

TEST_CASE("a plan that fails by one byte says so in different numbers") {
  const auto plan_with = [](Bytes budget) {
    PlanRequest request = request_for("llama", cpu_ranks(2, budget));
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{"sharding", "full-shard"},
                                                          {"reshard", "always"},
                                                          {"wrap", "layer"},
                                                          {"checkpointing", "full"},
                                                          {"prefetch", "backward=none,forward=0"},
                                                          {"micro_batch", "1"},
                                                          {"loss", "full"}}) {
      fix(request, name, value);  // few configurations, planned many times
    }
    return make_plan(request);
  };
  // Found by halving: the least with which something runs, without room for the upper bound.
  Bytes too_little{1}, enough = kGiB;
  while (enough - too_little > Bytes{1}) {
    const Bytes middle{(too_little.n + enough.n) / 2};
    (plan_with(middle).chosen ? enough : too_little) = middle;
  }
  const std::string why = plan_with(too_little).why;
  CAPTURE(why);
  const std::size_t of = why.find(" of "), needs = why.rfind(' ', of - 1) + 1;
  REQUIRE(of != std::string::npos);
  const std::string needed = why.substr(needs, of - needs), budget = why.substr(of + 4, why.find(' ', of + 4) - of - 4);
  CHECK(needed != budget);
}

TEST_CASE("a bigger budget never gives a slower plan") {
  double fastest = 0;
  for (const Bytes budget : budgets()) {
    CAPTURE(budget.n);
    const Plan plan = make_plan(request_for("qwen3", cpu_ranks(2, budget)));
    const double speed = plan.chosen ? plan.chosen->tokens_per_second : 0;
    CHECK(speed >= fastest);
    fastest = speed;
  }
  CHECK(fastest > 0);
}

TEST_CASE("fields that were set are never changed, drawn at random, under every --allow") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> values{
      {"sharding", {"no-shard", "shard-grad-op", "full-shard"}},
      {"checkpointing", {"none", "full", "every:2"}},
      {"loss", {"full", "chunked:5"}},
      {"micro_batch", {"1", "2", "4"}},
      {"prefetch", {"backward=none,forward=0,limit=0", "backward=pre,forward=1,limit=0"}},
      {"reshard_head", {"on", "off"}},
      {"precision", {"fp32", "bf16-mixed", "bf16-pure"}},
      {"reduce_dtype", {"fp32", "bf16"}},
      {"state_dtype", {"fp32", "bf16"}},
      {"compute_dtype", {"fp32", "bf16"}},
      {"buffer_dtype", {"fp32", "bf16"}}};
  const std::vector<std::string> allows{"",         "any", "precision", "precision:bf16-pure", "precision:fp32,seq-len",
                                        "optimizer"};
  std::mt19937_64 random(7);
  int planned = 0;
  for (int round = 0; round < 60; ++round) {
    PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
    const std::string allow = allows[random() % allows.size()];
    request.allowed = parse_allowed(allow);
    CAPTURE(allow);
    std::vector<std::pair<std::string, std::string>> set;
    for (const auto& [name, choices] : values) {
      if (random() % 2 == 0) continue;
      set.emplace_back(name, choices[random() % choices.size()]);
      fix(request, name, set.back().second);
    }
    Plan plan;
    try {
      plan = make_plan(request);
    } catch (const NotModelled&) {
      continue;  // dtypes that no optimizer takes together
    } catch (const Conflict&) {
      CHECK((!allow.empty() && allow != "any"));  // what is set leaves no change of a kind that is named
      continue;
    }
    REQUIRE(plan.chosen);
    ++planned;
    for (const auto& [name, value] : set) {
      if (name == "precision" && allow.starts_with("precision")) continue;  // may be changed by its name
      CAPTURE(name);
      CHECK(job_field_named(name).get(plan.chosen->job) == value);
      for (const Candidate& candidate : plan.alternatives) {
        if (name != "precision") CHECK(job_field_named(name).get(candidate.job) == value);
      }
    }
    CHECK(plan.chosen->job.sequence == 64);
    CHECK(plan.chosen->job.global_batch == 8);
  }
  CHECK(planned > 15);
}

TEST_CASE("a dtype that was set outlives a precision that --allow brings") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  fix(request, "reduce_dtype", "fp32");
  request.allowed = parse_allowed("precision:bf16-pure");
  const std::vector<Change> bases = groups_to_search(request).front();
  REQUIRE(bases.size() == 2);
  CHECK(bases[1].job.precision.name == "bf16-pure");
  CHECK(bases[1].job.precision.storage == Dtype::bf16);
  CHECK(bases[1].job.precision.reduce == Dtype::f32);
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  CHECK(plan.chosen->job.precision.name == "bf16-pure");
  CHECK(plan.chosen->job.precision.reduce == Dtype::f32);

  // States in another dtype than the parameters go with both: AdamW updates them chunk by chunk.
  fix(request, "state_dtype", "fp32");
  const Plan both = make_plan(request);
  REQUIRE(both.chosen);
  CHECK(both.chosen->job.precision.name == "bf16-pure");
  CHECK(both.chosen->job.precision.state == Dtype::f32);
  CHECK(both.chosen->job.precision.reduce == Dtype::f32);
}

TEST_CASE("--allow any leaves alone what was set, and its kind's name doesn't") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  fix(request, "precision", "bf16-mixed");
  request.allowed = parse_allowed("any");
  CHECK(make_plan(request).chosen->job.precision.name == "bf16-mixed");
  request.allowed = parse_allowed("precision");
  CHECK(make_plan(request).chosen->job.precision.name == "bf16-pure");
}

TEST_CASE("a change of the result is used only when it is allowed, and offered when it isn't") {
  PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  fix(request, "precision", "fp32");
  fix(request, "prefetch", "backward=post,forward=1,limit=0");  // few enough to estimate all of them
  Evaluator evaluator(request);
  Bytes smallest = kGiB;
  for (const Job& job : enumerate_jobs(request)) smallest = std::min(smallest, worst_total(evaluator.estimate_of(job)));
  request.cluster.card.memory = smallest;  // but not what it may come to
  CHECK(make_plan(request).why.find("(its upper bound)") != std::string::npos);
  request.cluster.card.memory = smallest - Bytes{4096};

  const Plan refused = make_plan(request);
  CHECK_FALSE(refused.chosen);
  CHECK(refused.why.find("the smallest needs") != std::string::npos);
  CHECK(refused.why.find("upper bound") == std::string::npos);
  CHECK(refused.why.find("with --allow precision:bf16-pure it would fit at") != std::string::npos);
  CHECK(refused.why.starts_with("no plan with --prefetch backward=post,forward=1,limit=0"));
  const std::vector<std::string> smaller{"precision:bf16-pure"};
  CHECK(std::ranges::count(refused.alternatives, smaller, &Candidate::needs) == 1);

  request.allowed = parse_allowed("precision:bf16-pure");
  const Plan allowed = make_plan(request);
  REQUIRE(allowed.chosen);
  CHECK(allowed.chosen->job.precision.name == "bf16-pure");
  CHECK(allowed.chosen->job.precision.state == Dtype::bf16);

  CHECK(refused.why.find("with --allow optimizer:adamw-8bit it would fit at") != std::string::npos);
  for (const auto& [kind, optimizer] :
       {std::pair{"optimizer", "adamw-8bit"}, std::pair{"optimizer:adamw-4bit", "adamw-4bit"}}) {
    request.allowed = parse_allowed(kind);
    const Plan with_fewer_bits = make_plan(request);
    REQUIRE(with_fewer_bits.chosen);
    CHECK(with_fewer_bits.chosen->job.optimizer == optimizer);
    CHECK(with_fewer_bits.chosen->job.precision.name == "fp32");
  }
}

TEST_CASE("no plan and no alternative computes in a precision that the card lacks") {
  PlanRequest request = request_for("llama", parse_cluster("2xT4"));
  for (const char* allowed : {"", "any"}) {
    request.allowed = parse_allowed(allowed);
    const Plan plan = make_plan(request);
    REQUIRE(plan.chosen);
    CHECK(plan.chosen->job.precision.compute == Dtype::f16);
    for (const Candidate& other : plan.alternatives) CHECK(other.job.precision.compute != Dtype::bf16);
  }
  for (const char* allowed : {"precision", "precision:bf16-pure"}) {
    request.allowed = parse_allowed(allowed);
    CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("has no bf16 units"), Conflict);
  }
}

TEST_CASE("fp8 is weighed only where its name is given") {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  const auto weighs_fp8 = [&](const char* allowed) {
    request.allowed = parse_allowed(allowed);
    return std::ranges::any_of(groups_to_search(request).front(),
                               [](const Change& change) { return change.job.precision.name == "fp8"; });
  };
  CHECK(weighs_fp8("precision:fp8"));
  for (const char* others : {"", "any", "precision", "precision:bf16-pure"}) CHECK_FALSE(weighs_fp8(others));
}

TEST_CASE("a shorter sequence is used only when nothing else fits") {
  PlanRequest request = request_for("llama", cpu_ranks(2, kGiB));
  fix(request, "prefetch", "backward=post,forward=1,limit=0");  // few enough to estimate all of them
  request.job.sequence = 1024;
  request.allowed = parse_allowed("seq-len");
  CHECK(make_plan(request).chosen->job.sequence == 1024);
  Evaluator evaluator(request);
  Bytes smallest = kGiB;
  for (const Job& job : enumerate_jobs(request)) smallest = std::min(smallest, worst_total(evaluator.estimate_of(job)));
  request.cluster.card.memory = smallest - Bytes{4096};
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  CHECK(plan.chosen->job.sequence == 512);
}

TEST_CASE("the frontier of slower alternatives needs less at each step, and all of it fits") {
  const Plan plan = make_plan(request_for("llama", cpu_ranks(2, kGiB)));
  Bytes last = total_of(*plan.chosen);
  double speed = plan.chosen->tokens_per_second;
  for (const Candidate& candidate : plan.alternatives) {
    if (candidate.why.find("slower by") == std::string::npos) continue;
    CHECK(candidate.estimate.verdict == Verdict::fits);
    CHECK(total_of(candidate) < last);
    CHECK(candidate.tokens_per_second <= speed);
    last = total_of(candidate);
    speed = candidate.tokens_per_second;
  }
  CHECK(last < total_of(*plan.chosen));
}

TEST_CASE("faster choices that do not fit are shown with what they need") {
  const Plan roomy = make_plan(request_for("llama", cpu_ranks(2, kGiB)));
  Plan tight = roomy;
  for (Bytes budget = total_of(*roomy.chosen); tight.chosen->tokens_per_second == roomy.chosen->tokens_per_second;) {
    budget -= budget.n / 10 * Bytes{1};
    tight = make_plan(request_for("llama", cpu_ranks(2, budget)));
    REQUIRE(tight.chosen);
  }
  REQUIRE_FALSE(tight.alternatives.empty());
  CHECK(tight.alternatives.front().estimate.verdict == Verdict::does_not_fit);
  CHECK(tight.alternatives.front().why.find("faster by") != std::string::npos);
}

TEST_CASE("the same request gives the same plan") {
  const PlanRequest request = request_for("phi3", cpu_ranks(4, 3 * kMiB));
  Plan first = make_plan(request), second = make_plan(request);
  first.search.seconds = second.search.seconds = 0;
  CHECK(plan_to_json(request, first) == plan_to_json(request, second));
}

TEST_CASE("kinds of --allow are known by name") {
  CHECK(parse_allowed("any").any);
  CHECK(parse_allowed("precision:bf16-pure,precision:fp32").kinds.at("precision").size() == 2);
  CHECK(parse_allowed("").kinds.empty());
  CHECK_THROWS_AS(parse_allowed("precison"), InputError);
  CHECK_THROWS_AS(parse_allowed("precision:bf17"), InputError);
  CHECK(parse_allowed("optimizer:adamw-8bit").kinds.at("optimizer") == std::vector<std::string>{"adamw-8bit"});
  CHECK_THROWS_AS(parse_allowed("optimizer:adamw-9bit"), InputError);
  CHECK_THROWS_AS(parse_allowed("seq-len:-1"), InputError);
}

TEST_CASE("a plan for PyTorch's FSDP2 has nothing that it doesn't honour, and says why there is none") {
  PlanRequest request = request_for("llama", parse_cluster("4xH100-80GB"));
  for (const auto& [field, value] :
       {std::pair{"runtime", "pytorch-fsdp2"}, std::pair{"modeling", "torchtitan"}, std::pair{"micro_batch", "2"}}) {
    fix(request, field, value);
  }
  CHECK_THROWS_WITH_AS(make_plan(request), doctest::Contains("--attention cudnn"), NotModelled);
  fix(request, "attention", "flash");
  const Plan plan = make_plan(request);
  REQUIRE(plan.chosen);
  CHECK(plan.chosen->job.accumulation == 1);
  CHECK(plan.chosen->job.micro_batch == 2);
  CHECK(std::holds_alternative<WrapLayers>(plan.chosen->job.wrap));
  CHECK(std::holds_alternative<NoCheckpointing>(plan.chosen->job.checkpointing));
  CHECK(plan.chosen->time.communication_seconds > 0);
  Evaluator evaluator(request);
  std::set<std::string> checkpointing, reshard;
  for (const Option& option : all_timed(evaluator, enumerate_jobs(request))) {
    REQUIRE(has_rules(option.job, request.cluster));
    CHECK(option.tokens_per_second > 0);
    CHECK(option.tokens_per_second <= plan.chosen->tokens_per_second);
    checkpointing.insert(job_field_named("checkpointing").get(option.job));
    reshard.insert(job_field_named("reshard").get(option.job));
  }
  for (const char* choice : {"every:2", "full", "none", "selective"}) CHECK(checkpointing.contains(choice));
  CHECK(reshard == std::set<std::string>{"always", "default", "last-kept"});
}

TEST_CASE("a plan offloads where host memory is stated, and no more than fits there") {
  const auto request_on = [](const char* gpus) {
    PlanRequest request = request_for("llama", parse_cluster(gpus));
    request.spec = testing::llama_8b();
    fix(request, "precision", "bf16-pure");
    return request;
  };
  const auto plan_on = [&](const char* gpus) { return make_plan(request_on(gpus)); };
  const Plan kept = plan_on("1x24GB");
  CHECK_FALSE(kept.chosen);
  PlanRequest recomputing = request_on("1x24GB");
  fix(recomputing, "checkpointing", "full");
  const Plan recomputed = make_plan(recomputing);
  const Plan offloaded = plan_on("1x24GB,host=128GiB");
  REQUIRE(offloaded.chosen);
  CHECK(offloaded.chosen->job.offload.size() == 1);
  CHECK(offloaded.chosen->estimate.verdict == Verdict::fits);
  CHECK(offloaded.chosen->estimate.host_bytes <= 128 * kGiB);
  // Four kinds, each with activations kept on the card, or gone, as they may where all layers are recomputed.
  CHECK(offloaded.search.configurations == 4 * (kept.search.configurations + recomputed.search.configurations));
  const Plan none = plan_on("1x24GB,host=16GiB");
  CHECK_FALSE(none.chosen);
  CHECK_MESSAGE(none.why.find("host memory") != std::string::npos, none.why);
}

}  // namespace vramfit
