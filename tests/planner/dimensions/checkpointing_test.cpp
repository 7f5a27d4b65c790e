#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "job/resolve_job.h"
#include "planner/dimensions/dimensions.h"
#include "planner/search/space.h"
#include "tests/planner/requests.h"

namespace vramfit {

using testing::fix;
using testing::request_for;
using testing::torchtitan_request;

namespace {

int checkpointed(std::int64_t n, int blocks, int first) {
  int count = 0;
  for (int block = 0; block < blocks; ++block) count += (block + first) % n == 0 ? 1 : 0;
  return count;
}

/// How many blocks each choice of every:N checkpoints, of blocks that are counted from `first`. Each N is the smallest
/// that checkpoints as many.
std::multiset<int> counts_of(PlanRequest request, int blocks, int first) {
  request.spec.num_hidden_layers = blocks;
  std::vector<std::string> notes;
  const Job job = resolve_job(request.job, request.spec, request.cluster, notes);
  const Efficiency efficiency = efficiency_of(request.cluster);
  const SearchSpace space{.spec = request.spec, .cluster = request.cluster, .efficiency = efficiency};
  const auto row = std::ranges::find(dimensions(), "checkpointing", &Dimension::name);
  std::multiset<int> counts;
  for (const Job& choice : row->choices(job, space)) {
    const auto* every = std::get_if<EveryNth>(&choice.checkpointing);
    if (every == nullptr) continue;
    const int count = checkpointed(every->n, blocks, first);
    CHECK(checkpointed(every->n - 1, blocks, first) != count);
    counts.insert(count);
  }
  return counts;
}

/// The numbers that some N from 2 on gives, once each.
std::multiset<int> all_counts(int blocks, int first) {
  std::set<int> counts;
  for (int n = 2; n <= blocks; ++n) counts.insert(checkpointed(n, blocks, first));
  return {counts.begin(), counts.end()};
}

}  // namespace

TEST_CASE("every number of blocks that every:N can checkpoint is a choice, once") {
  for (const int blocks : {2, 3, 5, 32, 80}) {
    CAPTURE(blocks);
    // torchtitan's blocks are counted from 1, the engine's from 0.
    CHECK(counts_of(torchtitan_request(), blocks, 1) == all_counts(blocks, 1));
    CHECK(counts_of(request_for("llama", parse_cluster("2xH100-80GB")), blocks, 0) == all_counts(blocks, 0));
  }
}

}  // namespace vramfit
