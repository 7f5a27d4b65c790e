#include "planner/answer/largest_model.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "planner/answer/plan_json.h"
#include "planner/cost/training_cost.h"
#include "planner/search/search.h"
#include "program/files/plan_reader.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::fix;
using testing::request_for;

namespace {

PlanAnswer answer_for(const PlanRequest& request, std::string_view gpus, Objective objective,
                      const Prices& prices = {}) {
  return best_plan(request, parse_cluster_choice(gpus), objective, prices);
}

const ClusterPlan& best_of(const PlanAnswer& answer) { return answer.tried.at(answer.best); }

/// Open sequence and batch.
PlanRequest open_request() {
  PlanRequest request = request_for("llama", parse_cluster("1xcpu-1GiB"));
  request.fixed.clear();
  request.job = unresolved_job();
  return request;
}

}  // namespace

TEST_CASE("of several clusters the fastest, the cheapest or the one with the fewest GPUs is the answer") {
  const PlanRequest request = request_for("llama", parse_cluster("1xcpu-1GiB"));
  const std::string gpus = "4xH100-80GB,1xRTX3090,2xH100-80GB";
  const PlanAnswer fastest = answer_for(request, gpus, Objective::throughput);
  REQUIRE(fastest.tried.size() == 3);
  for (const ClusterPlan& made : fastest.tried) {
    REQUIRE(made.has_plan());
    CHECK(made.plan->chosen->tokens_per_second <= best_of(fastest).plan->chosen->tokens_per_second);
  }
  CHECK(best_of(answer_for(request, gpus, Objective::fewest_gpus)).request.cluster.text == "1xRTX3090");
  const std::string only_dear = "H100-80GB=1e5/h,RTX3090=1/h";
  CHECK(best_of(answer_for(request, gpus, Objective::cost, Prices(only_dear))).request.cluster.text == "1xRTX3090");
  const std::string only_cheap = "H100-80GB=0.001/h,RTX3090=1000/h";
  CHECK(best_of(answer_for(request, gpus, Objective::cost, Prices(only_cheap))).request.cluster.card.name ==
        "H100-80GB");
}

TEST_CASE("a cluster that can't have the job is told apart from one without a plan, and others are tried") {
  const PlanRequest request = request_for("llama", parse_cluster("1xcpu-1GiB"));
  const PlanAnswer answer = answer_for(request, "3xH100-80GB,1xcpu-1MiB,2xH100-80GB", Objective::throughput);
  CHECK(answer.tried[0].refusal.find("--global-batch") != std::string::npos);  // 8 rows among 3 ranks
  CHECK((answer.tried[1].plan && !answer.tried[1].has_plan()));
  CHECK(answer.best == 2);
  CHECK_THROWS_AS(answer_for(request, "3xH100-80GB,5xH100-80GB", Objective::throughput), InputError);
  CHECK_FALSE(best_of(answer_for(request, "3xH100-80GB,1xcpu-1MiB", Objective::throughput)).has_plan());
}

TEST_CASE("auto finds the fewest GPUs that hold a job: the next smaller size has no plan") {
  PlanRequest request = request_for("llama", parse_cluster("1xcpu-1MiB"));
  request.job.global_batch = 0;
  request.fixed = {"seq_len"};
  fix(request, "micro_batch", "1");
  const ClusterChoice sizes = parse_cluster_choice("auto:cpu-1MiB");
  std::size_t fewest = 0;
  for (; fewest < sizes.clusters.size(); ++fewest) {
    request.cluster = sizes.clusters[fewest];
    if (make_plan(request).chosen) break;
  }
  REQUIRE(fewest < sizes.clusters.size());
  CHECK(fewest > 0);
  const PlanAnswer answer = best_plan(request, sizes, Objective::throughput, {});
  CHECK(best_of(answer).request.cluster.text == sizes.clusters[fewest].text);
  CHECK(answer.objective == Objective::fewest_gpus);
}

TEST_CASE("the longest sequence has a plan, and the next step doesn't") {
  PlanRequest request = open_request();
  request.spec.max_position_embeddings = 1 << 20;
  const PlanAnswer answer = answer_for(request, "2xcpu-24MiB", Objective::longest_sequence);
  const ClusterPlan& best = best_of(answer);
  REQUIRE(best.has_plan());
  const std::int64_t longest = best.plan->chosen->job.sequence;
  CHECK(longest % kSequenceStep == 0);
  request.cluster = best.request.cluster;
  fix(request, "seq_len", std::to_string(longest + kSequenceStep));
  CHECK_FALSE(make_plan(request).chosen);
  CHECK_THROWS_WITH_AS(answer_for(request, "2xcpu-24MiB", Objective::longest_sequence),
                       doctest::Contains("--objective longest-sequence decides --seq-len"), InputError);
}

TEST_CASE("a model's positions limit the longest sequence") {
  PlanRequest request = open_request();
  request.spec.max_position_embeddings = 700;
  CHECK(best_of(answer_for(request, "1xH100-80GB", Objective::longest_sequence)).plan->chosen->job.sequence == 512);
  request.spec.max_position_embeddings = 100;
  CHECK(best_of(answer_for(request, "1xH100-80GB", Objective::longest_sequence)).plan->chosen->job.sequence == 100);
}

TEST_CASE("the largest batch has a plan, and one row more doesn't") {
  PlanRequest request = open_request();
  fix(request, "seq_len", "64");
  const PlanAnswer answer = answer_for(request, "2xcpu-24MiB", Objective::largest_batch);
  const ClusterPlan& best = best_of(answer);
  REQUIRE(best.has_plan());
  const Job& job = best.plan->chosen->job;
  CHECK(job.accumulation == 1);
  CHECK(job.global_batch == 2 * job.micro_batch);
  request.cluster = best.request.cluster;
  fix(request, "micro_batch", std::to_string(job.micro_batch + 1));
  fix(request, "grad_accum", "1");
  CHECK_FALSE(make_plan(request).chosen);
  CHECK_THROWS_AS(answer_for(request, "2xcpu-24MiB", Objective::largest_batch), InputError);
}

TEST_CASE("with the most headroom, nothing of the space that fits needs less") {
  PlanRequest request = request_for("llama", parse_cluster("2xcpu-24MiB"));
  const Plan fastest = make_plan(request);
  REQUIRE(fastest.chosen);
  const PlanAnswer answer = answer_for(request, "2xcpu-24MiB", Objective::headroom);
  const Plan& smallest = *best_of(answer).plan;
  REQUIRE(smallest.chosen);
  const Bytes least = worst_total(smallest.chosen->estimate);
  CHECK(least < worst_total(fastest.chosen->estimate));
  Evaluator evaluator(request);
  for (const Job& job : enumerate_jobs(request)) {
    const Trial& trial = evaluator.trial_of(job);
    if (trial.fits) CHECK(trial.total >= least);
  }
  // The first alternative is what the headroom costs: the fastest of all.
  REQUIRE_FALSE(smallest.alternatives.empty());
  CHECK(smallest.alternatives.front().tokens_per_second == doctest::Approx(fastest.chosen->tokens_per_second));
  for (const Candidate& other : smallest.alternatives) {
    CHECK(other.tokens_per_second > smallest.chosen->tokens_per_second);
  }
}

TEST_CASE("cost needs a price of every GPU that has a plan") {
  const PlanRequest request = request_for("llama", parse_cluster("1xcpu-1GiB"));
  CHECK_THROWS_WITH_AS(answer_for(request, "1xRTX4080", Objective::cost),
                       doctest::Contains("no price of RTX4080 is known"), InputError);
  CHECK_THROWS_WITH_AS(answer_for(request, "1xRTX4090", Objective::cost, Prices("RTX3090=1/h")),
                       doctest::Contains("no price of RTX4090 is known"), InputError);
}

TEST_CASE("the largest model of a family that has a plan: all larger ones have none") {
  const std::vector<ModelSpec> models = models_of_family("gpt2");
  REQUIRE(models.size() >= 3);
  PlanRequest request = request_for("llama", parse_cluster("1xcpu-1GiB"));
  for (const std::string gpus : {"1x24GB", "1x3GiB", "1x0.5GiB"}) {
    CAPTURE(gpus);
    const LargestModel largest = plan_largest(request, models, parse_cluster_choice(gpus), Objective::throughput, {});
    const std::string chosen = best_of(largest.answer).request.spec.name;
    for (std::size_t i = 0; i <= largest.larger.size(); ++i) {
      request.spec = models[i];
      request.cluster = parse_cluster(gpus);
      const Plan plan = make_plan(request);
      const bool has_plan = plan.chosen.has_value();
      CHECK(has_plan == (i == largest.larger.size() && best_of(largest.answer).has_plan()));
      if (i < largest.larger.size()) CHECK(largest.larger[i].why == plan.none->lacks);  // without what would do
      if (i == largest.larger.size()) CHECK(best_of(largest.answer).plan->why == plan.why);
      CHECK((i < largest.larger.size() ? largest.larger[i].model : chosen) == models[i].name);
    }
  }
  CHECK_THROWS_WITH_AS(models_of_family("lama"), doctest::Contains("did you mean \"llama\""), InputError);
}

TEST_CASE("lists of clusters") {
  CHECK(parse_cluster_choice("8xH100-80GB").clusters.size() == 1);
  CHECK_FALSE(parse_cluster_choice("8xH100-80GB,2x8xA100-40GB").asks_how_many);
  const ClusterChoice sizes = parse_cluster_choice("auto:H100-80GB");
  CHECK(sizes.asks_how_many);
  REQUIRE(sizes.clusters.size() == 4 + kMostAutoNodes - 1);
  for (std::size_t i = 1; i < sizes.clusters.size(); ++i) {
    CHECK(sizes.clusters[i].cards() > sizes.clusters[i - 1].cards());
  }
  CHECK(parse_cluster_choice("auto:6xRTX4090").clusters[3].text == "6xRTX4090");
  CHECK(parse_cluster_choice("auto:cpu-1GiB").clusters.back().text == "8xcpu-1GiB");
  const ClusterChoice of_batch = parse_cluster_choice("auto:H100-80GB", 21);
  CHECK(of_batch.clusters[0].text == "1xH100-80GB");
  CHECK(of_batch.clusters[1].text == "3xH100-80GB");
  CHECK(of_batch.clusters[2].text == "7xH100-80GB");
  CHECK(of_batch.clusters[3].text == "8xH100-80GB");
  CHECK(of_batch.clusters[3].notes.back().find("tries: 1, 3, 7, 8, and nodes of 8") != std::string::npos);
  for (const char* wrong :
       {"", ",", "8xH100-80GB,", "auto:", "auto:2x8xH100-80GB", "auto:H100-80GB,1xL4", "auto:0xL4"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_cluster_choice(wrong), InputError);
  }
  for (const char* mixed : {"auto:H100,auto:A100", "4xRTX4090,1xH100-80GB,auto:L4", "auto:H100,8xA100"}) {
    CAPTURE(mixed);
    CHECK_THROWS_WITH_AS(parse_cluster_choice(mixed), doctest::Contains("auto: stands alone"), InputError);
  }
  CHECK(parse_cluster_choice("auto:RTX4090").clusters[2].notes.back() ==
        "the fewest of the numbers that --gpus auto: tries: 1, 2, 4, 8, and nodes of 8; auto:NxRTX4090 tries nodes of "
        "N");
}

TEST_CASE("prices of none of the GPUs are refused, some of a list are not") {
  const std::vector<Cluster> clusters{parse_cluster("4xRTX4090")};
  CHECK_THROWS_WITH_AS(Prices("H100-80GB=2/h").require_any_of(clusters),
                       doctest::Contains("--price H100-80GB=...: changes nothing"), InputError);
  CHECK_NOTHROW(Prices("H100-80GB=2/h,RTX4090=1/h").require_any_of(clusters));
  CHECK_NOTHROW(Prices("H100-80GB=2/h,1/h").require_any_of(clusters));
  CHECK_NOTHROW(Prices().require_any_of(clusters));
}

TEST_CASE("prices") {
  const Card& h100 = parse_cluster("1xH100-80GB").card;
  const std::optional<Price> known = Prices().of(h100);
  REQUIRE(known);
  CHECK(known->per_gpu_hour == doctest::Approx(3600 * 0.00093));
  CHECK(known->is_dollars);
  const std::optional<Price> hourly = Prices().of(parse_cluster("1xA100-40GB").card);
  REQUIRE(hourly);
  CHECK(hourly->per_gpu_hour == doctest::Approx(1.99));
  CHECK(hourly->origin.find("2026-11-16") != std::string::npos);
  CHECK_FALSE(Prices().of(parse_cluster("1x24GB").card));
  CHECK(Prices("2.5/h").of(h100)->per_gpu_hour == 2.5);
  CHECK_FALSE(Prices("2.5").of(h100)->is_dollars);
  CHECK(Prices("1,h100_80gb=4/h").of(h100)->per_gpu_hour == 4);
  CHECK_FALSE(Prices("L4=4/h").of(h100));  // another currency than the catalog's, perhaps
  for (const char* wrong : {"", "0", "-1", "nan", "1,2", "L4=", "L4=1,L4=2", "2.5/d", "=3"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(Prices{wrong}, InputError);
  }
  CHECK_THROWS_AS(
      parse_prices(
          R"({"origins": {"a": "A"}, "usd_per_second": [{"card": "H1", "price": [1, "a"]}], "usd_per_hour": []})", "p"),
      InputError);
  CHECK_THROWS_AS(
      parse_prices(
          R"({"origins": {"a": "A"}, "usd_per_second": [{"card": "L4", "price": [1, "b"]}], "usd_per_hour": []})", "p"),
      InputError);
}

TEST_CASE("a card has one price, by the second or by the hour") {
  const char* twice =
      R"({"origins": {"a": "A"}, "usd_per_second": [{"card": "L4", "price": [1, "a"]}], "usd_per_hour": [{"card": "L4", "price": [1, "a"]}]})";
  CHECK_THROWS_WITH_AS(parse_prices(twice, "p"), doctest::Contains("has two prices"), InputError);
}

TEST_CASE("what training on a number of tokens costs") {
  CHECK(parse_tokens("15B") == 15'000'000'000);
  CHECK(parse_tokens("1.5T") == 1'500'000'000'000);
  CHECK(parse_tokens("20k") == 20'000);
  CHECK(parse_tokens("7") == 7);
  for (const char* wrong : {"", "B", "-1B", "0", "1e30", "1.5Q", "nanB"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(parse_tokens(wrong), InputError);
  }
  // 7.2 million tokens at 1000 a second: 2 h on 4 GPUs at 3 each.
  const TrainingCost cost =
      training_cost(7'200'000, 1000, 4, Price{.per_gpu_hour = 3, .origin = "", .is_dollars = true});
  CHECK(cost.hours == doctest::Approx(2));
  CHECK(cost.gpu_hours == doctest::Approx(8));
  CHECK(*cost.money == doctest::Approx(24));
  CHECK_FALSE(training_cost(1, 1, 1, std::nullopt).money);
}

TEST_CASE("a plan file with objective, cost and clusters can be read") {
  const PlanRequest request = request_for("llama", parse_cluster("1xcpu-1GiB"));
  const PlanAnswer answer = answer_for(request, "1xcpu-1GiB,2xcpu-1GiB", Objective::throughput);
  const PlanFile file = plan_from_json(answer_to_json(answer, 1000), "plan.json");
  CHECK(file.cluster.cards() == best_of(answer).request.cluster.cards());
}

}  // namespace vramfit
