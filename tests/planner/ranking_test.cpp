#include "planner/ranking.h"

#include <doctest/doctest.h>

#include <random>

#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::all_timed;
using testing::cpu_ranks;
using testing::fix;
using testing::request_for;

namespace {

Ranking ranking_of(Evaluator& evaluator, const std::vector<Job>& jobs) {
  std::vector<Option> options;
  for (const Job& job : jobs) options.push_back({.job = job, .time = {}, .needs = {}});
  return {evaluator, std::move(options)};
}

}  // namespace

TEST_CASE("a ranking is what timing and sorting all options gives, equally fast ones in the order of the list") {
  std::vector<PlanRequest> requests{
      request_for("llama", cpu_ranks(2, kGiB)), request_for("gpt2", parse_cluster("2x2xRTX3090")),
      request_for("gemma2", parse_cluster("4xH100-80GB")), request_for("qwen3", parse_cluster("2xH100-80GB"))};
  fix(requests[1], "freeze", "*.mlp.*");
  fix(requests[2], "wrap", "pattern:*.mlp,*.self_attn");
  fix(requests[3], "runtime", "pytorch-fsdp2");
  for (const PlanRequest& request : requests) {
    CAPTURE(job_as_flags(request.job, unresolved_job()));
    std::vector<Job> jobs = enumerate_jobs(request).jobs;
    std::shuffle(jobs.begin(), jobs.end(), std::mt19937(3));
    jobs.insert(jobs.end(), jobs.begin(), jobs.begin() + 20);  // as fast as the ones that come before them
    Evaluator evaluator(request), lazy(request);
    const std::vector<Option> sorted = all_timed(evaluator, jobs);
    Ranking ranking = ranking_of(lazy, jobs);
    REQUIRE(ranking.size() == sorted.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      CHECK(job_as_flags(ranking.at(i).job, unresolved_job()) == job_as_flags(sorted[i].job, unresolved_job()));
      CHECK(ranking.at(i).tokens_per_second == sorted[i].tokens_per_second);
    }
  }
}

TEST_CASE("the first options of a ranking are known before most are timed") {
  const ModelSpec spec = catalog_spec(*find_in_catalog("meta-llama/Llama-3.2-1B"));
  PlanRequest request{
      .spec = spec, .job = unresolved_job(), .fixed = {}, .cluster = parse_cluster("4xH100-80GB"), .allowed = {}};
  request.job.global_batch = 32;
  fix(request, "loss", "full");
  const std::vector<Job> jobs = enumerate_jobs(request).jobs;
  Evaluator evaluator(request);
  ranking_of(evaluator, jobs).at(9);
  CHECK(evaluator.timings() < static_cast<std::int64_t>(jobs.size()) / 2);
}

}  // namespace vramfit
