// What a search keeps of a walk through a step of PyTorch's runtimes.
#include <doctest/doctest.h>

#include "estimator/rank_estimate.h"
#include "planner/search/search.h"
#include "planner/search/space.h"
#include "program/stages/adapters.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::torchtitan_request;

TEST_CASE("what a walk requests alone answers as the allocator's replay does, whatever the limit") {
  for (const bool clip : {true, false}) {
    PlanRequest request = torchtitan_request();
    request.job.global_batch = 4;
    request.clip = clip;
    Evaluator evaluator(request);
    int attempts = 0;
    for (const Job& job : enumerate_jobs(request)) {
      if (!has_rules(job, request.cluster)) continue;
      CAPTURE(job_as_flags(job, unresolved_job()));
      const Option option = evaluator.timed(job), again = evaluator.timed(job);
      const Graph graph = training_graph(request.spec, job);
      const CountOptions options{.run = {.clip = clip}};
      const RankEstimate rank = estimate_rank(graph, job, request.cluster, options);
      REQUIRE(option.requested);
      CHECK(*option.requested == rank.peak_requested);
      REQUIRE(option.reserved);
      CHECK(*option.reserved >= *option.requested);
      CHECK(*option.reserved <= rank.peak_reserved);
      CHECK(again.requested == option.requested);
      CHECK(again.reserved == option.reserved);
      CHECK(again.tokens_per_second == option.tokens_per_second);
      const Bytes outside = outside_allocator(graph, job, request.cluster), asked = *option.requested + outside;
      for (const Bytes below : {asked, asked + Bytes{1}, rank.total, rank.total + Bytes{1}, kNoLimit}) {
        ++attempts;
        const Attempt attempt = evaluator.attempt(option, below);
        const auto counted = estimate_rank_below(graph, job, request.cluster, options, below);
        CHECK(attempt.rank.has_value() == counted.has_value());
        CHECK(attempt.rank.has_value() == (rank.total < below));
        if (attempt.rank && counted) CHECK(attempt.rank->total == counted->total);
      }
    }
    CHECK(attempts > 20);
  }
}

TEST_CASE("a step that doesn't clip is timed without clipping") {
  PlanRequest request = torchtitan_request();
  request.job.global_batch = 4;
  Evaluator clips(request);
  PlanRequest other = request;
  other.clip = false;
  Evaluator leaves_out(other);
  const Job job = enumerate_jobs(request).front();
  CHECK(leaves_out.timed(job).time.step_seconds < clips.timed(job).time.step_seconds);
}

}  // namespace vramfit
