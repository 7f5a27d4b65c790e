#include "planner/answer/larger_cluster.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "job/cluster/cluster_text.h"
#include "job/resolve_job.h"
#include "planner/answer/larger_batch.h"
#include "planner/search/best_first.h"
#include "planner/search/least_choice.h"

namespace vramfit {

namespace {

constexpr std::int64_t kUsualCardsOfANode = 8, kMostNodes = 64;

Cluster resized(const Cluster& cluster, std::int64_t nodes, std::int64_t cards) {
  Cluster larger = parse_cluster(cluster_text(nodes, cards, card_text(cluster.text)));
  larger.card = cluster.card;
  larger.host_memory = cluster.host_memory;
  larger.confidence = cluster.confidence;
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

enum class Alike { all, one };  // of configurations that have nearly as many fragments, how many are looked at

/// The fastest job that fits this cluster and is faster than `above`, if there is one. Throws an Error where the job
/// can't be on it.
std::optional<Fitting> fastest_fitting(const Cluster& cluster, const PlanRequest& asked, double above,
                                       SearchCounts& counts, const std::shared_ptr<ModelStages>& model,
                                       Alike alike = Alike::all) {
  std::vector<std::string> notes;
  PlanRequest request = asked.on(cluster);
  request.job = resolve_job(request.job, request.spec, request.cluster, notes);
  Evaluator evaluator(request, model);
  const std::optional<LeastOfAll> least = least_of_all(request.job, request, evaluator);
  if (least && least->is_ruled_out) return std::nullopt;
  SearchCounts others;  // configurations that the plan has no choice of
  BestFirst queue(evaluator, request, {{.job = request.job}}, BestBy::speed, others);
  if (alike == Alike::one) queue.look_at_one_of_alike();
  std::optional<Fitting> found = first_that_fits(queue, evaluator, above);
  counts.bounds += others.bounds;
  return found;
}

/// Likewise, as a cluster to name.
std::optional<OtherCluster> fastest_on(const Cluster& cluster, const PlanRequest& request, double above,
                                       SearchCounts& counts, const std::shared_ptr<ModelStages>& model) {
  const std::optional<Fitting> found = fastest_fitting(cluster, request, above, counts, model);
  if (!found) return std::nullopt;
  return OtherCluster{.gpus = cluster.text,
                      .job = found->option.job,
                      .total = found->rank.total,
                      .tokens_per_second = found->option.tokens_per_second};
}

/// None of a single card.
std::optional<Cluster> half_of(const Cluster& cluster) {
  if (cluster.nodes > 1) return resized(cluster, cluster.nodes / 2, cluster.cards_per_node);
  if (cluster.cards_per_node > 1) return resized(cluster, 1, cluster.cards_per_node / 2);
  return std::nullopt;
}

}  // namespace

std::optional<OtherCluster> larger_cluster(const PlanRequest& asked, const std::shared_ptr<ModelStages>& model) {
  if (asked.cluster.is_cpu()) return std::nullopt;
  for (const Cluster& cluster : larger_than(asked.cluster)) {
    try {
      SearchCounts counts;
      if (std::optional<OtherCluster> found = fastest_on(cluster, asked, -1, counts, model)) return found;
    } catch (const Error&) {
      continue;  // the job can't be on so many
    }
  }
  return std::nullopt;
}

std::optional<OffloadedPlan> with_host_memory(const PlanRequest& asked, const std::shared_ptr<ModelStages>& model) {
  const Bytes most = 4096 * kGiB;  // than any node has
  const bool has_none = !asked.cluster.is_cpu() && asked.cluster.host_memory.n == 0;
  if (asked.is_fixed("offload") || !has_none || asked.job.runtime != Runtime::vramfit) return std::nullopt;
  Cluster cluster = asked.cluster;
  cluster.host_memory = most;
  try {
    SearchCounts counts;
    const std::optional<Fitting> found = fastest_fitting(cluster, asked, -1, counts, model, Alike::one);
    if (!found) return std::nullopt;
    return OffloadedPlan{.host = cluster.cards_per_node * found->rank.host, .total = found->rank.total};
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<OtherCluster> smaller_cluster(const PlanRequest& asked, double tokens_per_second, SearchCounts& counts,
                                            const std::shared_ptr<ModelStages>& model) {
  std::optional<OtherCluster> best;
  if (asked.cluster.is_cpu() || asked.job.runtime != Runtime::vramfit) return best;
  double above = (1 + kLeastGain) * tokens_per_second;
  for (std::optional<Cluster> half = half_of(asked.cluster); half; half = half_of(*half)) {
    try {
      std::optional<OtherCluster> found = fastest_on(*half, asked, above, counts, model);
      if (!found) break;
      above = (1 + kLeastGain) * found->tokens_per_second;
      best = std::move(found);
    } catch (const Error&) {
      break;  // the job can't be on so few
    }
  }
  return best;
}

}  // namespace vramfit
