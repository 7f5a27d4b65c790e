// More GPUs against fewer of the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "base/error.h"
#include "job/cluster/cluster_text.h"
#include "planner/answer/larger_batch.h"
#include "tests/planner/drawn_requests.h"

namespace vramfit {

using testing::capacity_for;
using testing::draw;
using testing::Drawn;
using testing::request_of;
using testing::shrunk;
using testing::text_of;

namespace {

constexpr std::size_t kMostConfigurations = 400;  // of the smaller cluster: larger spaces take long to sample

/// Twice the GPUs of a node, or twice the nodes.
Cluster doubled(const Cluster& cluster, bool nodes) {
  Cluster twice =
      parse_cluster(cluster_text(nodes ? 2 * cluster.nodes : cluster.nodes,
                                 nodes ? cluster.cards_per_node : 2 * cluster.cards_per_node, card_text(cluster.text)));
  twice.card = cluster.card;
  twice.host_memory = cluster.host_memory;
  return twice;
}

struct Speeds {
  double fewer = 0, more = 0;  // tokens per second
  bool is_part = false;        // what is fastest on the larger cluster uses a part of it
};

/// None where the job can't be on one of the clusters, or isn't modelled, or has too many configurations.
std::optional<Speeds> speeds_of(const Drawn& drawn) {
  try {
    PlanRequest request = request_of(drawn);
    if (request.cluster.is_cpu()) return std::nullopt;
    const std::vector<Job> jobs = enumerate_jobs(request);
    if (jobs.size() > kMostConfigurations) return std::nullopt;
    PlanRequest asked = testing::unresolved_request_of(drawn);
    asked.cluster.card.memory = capacity_for(request, jobs, drawn.capacity);
    Speeds speeds;
    const Plan before = make_plan(asked);
    asked.cluster = doubled(asked.cluster, drawn.rows % 3 == 1 && asked.cluster.nodes == 1);
    const Plan after = make_plan(asked);
    if (before.chosen) speeds.fewer = before.chosen->tokens_per_second;
    if (after.chosen) speeds.more = after.chosen->tokens_per_second;
    if (after.smaller_cluster) {
      speeds.is_part = true;
      speeds.more = std::max(speeds.more, after.smaller_cluster->tokens_per_second);
    }
    return speeds;
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool holds(const Drawn& drawn) {
  const std::optional<Speeds> speeds = speeds_of(drawn);
  return !speeds || (1 + kLeastGain) * speeds->more >= speeds->fewer;
}

}  // namespace

TEST_CASE("more GPUs never make what is answered slower: where all of them are, a part of them is named") {
  std::mt19937_64 random(23);
  int compared = 0, parts = 0, faster = 0;
  while (compared < 40) {
    const Drawn drawn = draw(random);
    const std::optional<Speeds> speeds = speeds_of(drawn);
    if (!speeds) continue;
    ++compared;
    parts += speeds->is_part ? 1 : 0;
    faster += speeds->more > speeds->fewer && !speeds->is_part ? 1 : 0;
    if (holds(drawn)) continue;
    const Drawn least = shrunk(drawn, holds);
    const Speeds wrong = *speeds_of(least);
    CAPTURE(text_of(least));
    CHECK((1 + kLeastGain) * wrong.more >= wrong.fewer);
    break;
  }
  MESSAGE(parts, " of ", compared, " are faster on a part of the cluster, ", faster, " on all of it");
  CHECK(parts > 0);
  CHECK(faster > 0);
}

}  // namespace vramfit
