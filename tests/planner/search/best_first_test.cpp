#include "planner/search/best_first.h"

#include <doctest/doctest.h>

#include <random>

#include "estimator/rank_estimate.h"
#include "model_specs/catalog.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::all_timed;
using testing::cpu_ranks;
using testing::fix;
using testing::request_for;

namespace {

std::vector<PlanRequest> requests() {
  std::vector<PlanRequest> list{
      request_for("llama", cpu_ranks(2, kGiB)), request_for("gpt2", parse_cluster("2x2xRTX3090")),
      request_for("gemma2", parse_cluster("4xH100-80GB")), request_for("qwen3", parse_cluster("2xH100-80GB"))};
  fix(list[1], "freeze", "*.mlp.*");
  fix(list[2], "wrap", "pattern:*.mlp,*.self_attn");
  fix(list[3], "runtime", "pytorch-fsdp2");
  for (PlanRequest& request : list) {
    fix(request, "micro_batch", "1");  // few enough to look at all of them
    request = testing::resolved(request);
  }
  return list;
}

}  // namespace

TEST_CASE("configurations come in the order of their times, equally fast ones in the order of the rows") {
  for (const PlanRequest& request : requests()) {
    CAPTURE(job_as_flags(request.job, unresolved_job()));
    Evaluator evaluator(request), lazy(request);
    const std::vector<Option> sorted = all_timed(evaluator, enumerate_jobs(request));
    SearchCounts counts;
    BestFirst queue(lazy, request, {{.job = request.job}}, BestBy::speed, counts);
    for (const Option& option : sorted) {
      const std::optional<Option> next = queue.next(kNoLimit);
      REQUIRE(next);
      CHECK(job_as_flags(next->job, unresolved_job()) == job_as_flags(option.job, unresolved_job()));
      CHECK(next->tokens_per_second == option.tokens_per_second);
    }
    CHECK_FALSE(queue.next(kNoLimit));
    CHECK(counts.configurations == static_cast<std::int64_t>(sorted.size()));
    CHECK(counts.ruled_out == 0);
  }
}

TEST_CASE("a group's bounds hold for each configuration in it, and all of them are counted") {
  for (const PlanRequest& request : requests()) {
    CAPTURE(job_as_flags(request.job, unresolved_job()));
    Evaluator evaluator(request);
    Space space(request, request.job);
    // All the way down, with the bounds of what lies above.
    const auto look = [&](const auto& self, const Job& job, std::size_t level, Bytes least,
                          double most) -> std::int64_t {
      if (space.is_bounded(level)) {
        const OpenChoices open = space.open_from(level);
        const BoundParts parts = evaluator.parts_of(job, open);
        const Bytes own = evaluator.least_total(parts, job, open);
        const double own_most = evaluator.most_tokens_per_second(parts, job, open);
        if (level == space.levels()) {
          CHECK(own >= least);
          CHECK(own_most <= most);
        }
        least = std::max(least, own);
        most = std::min(most, own_most);
      }
      if (level == space.levels()) return 1;
      std::int64_t leaves = 0;
      for (const Job& choice : space.choices(job, level)) leaves += self(self, choice, level + 1, least, most);
      CHECK(space.count(job, level) == leaves);
      return leaves;
    };
    look(look, space.base(), 0, Bytes{}, std::numeric_limits<double>::infinity());
  }
}

TEST_CASE("the first configurations are known before most are timed") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.2-1B"));
  PlanRequest request{
      .spec = spec, .job = unresolved_job(), .fixed = {}, .cluster = parse_cluster("4xH100-80GB"), .allowed = {}};
  request.job.global_batch = 32;
  fix(request, "loss", "full");
  request = testing::resolved(request);
  Evaluator evaluator(request);
  SearchCounts counts;
  BestFirst queue(evaluator, request, {{.job = request.job}}, BestBy::speed, counts);
  for (int i = 0; i < 10; ++i) REQUIRE(queue.next(kNoLimit));
  CHECK(counts.configurations == static_cast<std::int64_t>(enumerate_jobs(request).size()));
  CHECK(evaluator.timings() < counts.configurations / 4);
  CHECK(counts.bounds < counts.configurations);
}

TEST_CASE("by need all are listed, with bounds that their estimates are not below") {
  const PlanRequest request = requests().front();
  Evaluator evaluator(request);
  SearchCounts counts;
  BestFirst queue(evaluator, request, {{.job = request.job}}, BestBy::need, counts);
  std::size_t listed = 0;
  while (const std::optional<Option> option = queue.next(kNoLimit)) {
    if (listed++ % 9 == 0) CHECK(evaluator.trial_of(option->job).total >= option->least_total);
  }
  CHECK(listed == enumerate_jobs(request).size());
}

TEST_CASE("by need, what is left out below a limit needs more than that") {
  const PlanRequest request = requests().front();
  Evaluator evaluator(request);
  Bytes smallest = kNoLimit;
  for (const Job& job : enumerate_jobs(request)) smallest = std::min(smallest, evaluator.trial_of(job).total);
  SearchCounts counts;
  BestFirst queue(evaluator, request, {{.job = request.job}}, BestBy::need, counts);
  Bytes found = kNoLimit;
  std::size_t listed = 0;
  while (const std::optional<Option> option = queue.next(found - Bytes{1})) {
    found = std::min(found, evaluator.trial_of(option->job).total);
    ++listed;
  }
  CHECK(found == smallest);
  CHECK(listed < enumerate_jobs(request).size() / 2);
}

}  // namespace vramfit
