#include "planner/answer/larger_cluster.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "job/cluster/cluster_text.h"
#include "job/resolve_job.h"
#include "planner/search/best_first.h"

namespace vramfit {

namespace {

constexpr std::int64_t kUsualCardsOfANode = 8, kMostNodes = 64;

Cluster resized(const Cluster& cluster, std::int64_t nodes, std::int64_t cards) {
  Cluster larger = parse_cluster(cluster_text(nodes, cards, card_text(cluster.text)));
  larger.card = cluster.card;
  larger.host_memory = cluster.host_memory;
  if (cluster.nodes > 1) {
    larger.network_bandwidth = cluster.network_bandwidth;
    larger.network_origin = cluster.network_origin;
  }
  return larger;
}

std::vector<Cluster> larger_than(const Cluster& cluster) {
  std::vector<Cluster> sizes;
  std::int64_t cards = cluster.cards_per_node;
  while (cluster.nodes == 1 && cards < kUsualCardsOfANode) {
    cards = std::min(2 * cards, kUsualCardsOfANode);
    sizes.push_back(resized(cluster, 1, cards));
  }
  for (std::int64_t nodes = 2 * cluster.nodes; nodes <= kMostNodes; nodes *= 2) {
    sizes.push_back(resized(cluster, nodes, cards));
  }
  return sizes;
}

/// Whether even states and gradients, split over all ranks, are too much.
bool is_hopeless(Evaluator& evaluator, Job job) {
  if (job.runtime != Runtime::vramfit || data_ranks(job) == 1) return false;
  job.sharding = "full-shard";
  job.mesh = {.replicate = 1, .shard = data_ranks(job)};
  job.reshard = ReshardByDefault{};
  const OpenChoices open{OpenChoice::micro_batch, OpenChoice::loss};
  const BoundParts parts = evaluator.parts_of(job, open);
  return evaluator.is_ruled_out(parts, job, evaluator.least_total(parts, job, open));
}

/// The fastest job that fits, if there is one.
std::optional<LargerCluster> plan_on(PlanRequest request) {
  std::vector<std::string> notes;
  request.job = resolve_job(request.job, request.spec, request.cluster, notes);
  Evaluator evaluator(request);
  if (is_hopeless(evaluator, request.job)) return std::nullopt;
  SearchCounts counts;
  BestFirst queue(evaluator, request, {{.needs = "", .job = request.job}}, BestBy::speed, counts);
  while (const std::optional<Option> option = queue.next(kNoLimit)) {
    const Attempt attempt = evaluator.attempt(*option, request.cluster.card.memory + Bytes{1});
    if (!attempt.fits) {
      queue.retry_last(attempt);
      continue;
    }
    return LargerCluster{.gpus = request.cluster.text,
                         .job = option->job,
                         .total = attempt.rank->total,
                         .tokens_per_second = option->tokens_per_second};
  }
  return std::nullopt;
}

}  // namespace

std::optional<LargerCluster> larger_cluster(const PlanRequest& asked) {
  if (asked.cluster.is_cpu()) return std::nullopt;
  for (const Cluster& cluster : larger_than(asked.cluster)) {
    PlanRequest request = asked;
    request.cluster = cluster;
    try {
      if (std::optional<LargerCluster> found = plan_on(std::move(request))) return found;
    } catch (const Error&) {
      continue;  // the job can't be on so many
    }
  }
  return std::nullopt;
}

}  // namespace vramfit
