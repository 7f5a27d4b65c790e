// What a search under PyTorch's runtimes passes over by bounds, and by walks that it gives up.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "job/fields/job_fields.h"
#include "planner/search/best_first.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::all_timed;
using testing::fix;
using testing::resolved;
using testing::torchtitan_request;

namespace {

/// What a search by speed gives and passes over is what whole walks of all its jobs say.
void check_what_is_passed_over(std::int64_t layers, std::int64_t global_batch) {
  PlanRequest request = torchtitan_request();
  request.spec.num_hidden_layers = layers;
  request.spec.vocab_size = 20000;
  request.spec.intermediate_size = 3000;
  request.job.sequence = 4096;
  request.job.global_batch = global_batch;
  fix(request, "sharding", "full-shard");
  fix(request, "allocator", "expandable");
  request = resolved(request);
  Evaluator evaluator(request), lazy(request);
  std::vector<Job> jobs = enumerate_jobs(request);
  std::vector<Option> sorted = all_timed(evaluator, jobs);
  std::vector<std::int64_t> requests;
  for (const Option& option : sorted) {
    CAPTURE(job_as_flags(option.job, unresolved_job()));
    REQUIRE(option.reserved);
    requests.push_back(option.reserved->n);
  }
  std::ranges::nth_element(requests, requests.begin() + static_cast<std::ptrdiff_t>(requests.size() / 2));
  request.cluster.card.memory = Bytes{requests[requests.size() / 2]};

  REQUIRE(request.cluster.card.memory > 2 * kGiB);  // more than what is outside the allocator
  SearchCounts counts;
  BestFirst queue(lazy, request, {{.job = request.job}}, BestBy::speed, counts);
  std::vector<std::string> given;
  while (const std::optional<Option> option = queue.next(kNoLimit)) {
    given.push_back(job_as_flags(option->job, unresolved_job()));
  }
  std::set<std::string> passed_over;
  for (const Option& option : queue.passed_over()) passed_over.insert(job_as_flags(option.job, unresolved_job()));
  std::vector<std::string> expected;
  for (const Option& option : sorted) {
    const std::string flags = job_as_flags(option.job, unresolved_job());
    CAPTURE(flags);
    if (!passed_over.contains(flags)) expected.push_back(flags);
    if (passed_over.contains(flags)) CHECK(evaluator.is_too_much(option.job, *option.reserved));
  }
  CHECK(given == expected);
  CHECK(passed_over.size() > sorted.size() / 4);
  CHECK(lazy.timings() == static_cast<std::int64_t>(given.size()));
}

}  // namespace

TEST_CASE("what is passed over needs more than the card has, and all else comes as if nothing were bounded") {
  check_what_is_passed_over(27, 16);
  check_what_is_passed_over(6, 16);
  check_what_is_passed_over(6, 64);
}

}  // namespace vramfit
