#include "planner/answer/larger_cluster.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "job/cluster/cluster_text.h"
#include "job/resolve_job.h"
#include "planner/answer/larger_batch.h"
#include "planner/dimensions/dimensions.h"
#include "planner/search/best_first.h"
#include "planner/search/changes.h"
#include "planner/search/least_choice.h"

namespace vramfit {

namespace {

constexpr std::int64_t kUsualCardsOfANode = 8;

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

/// The question of this cluster. Throws an Error where the job can't be on it.
PlanRequest resolved_on(const Cluster& cluster, const PlanRequest& asked) {
  std::vector<std::string> notes;
  PlanRequest request = asked.on(cluster);
  request.job = resolve_job(request.job, request.spec, request.cluster, notes);
  return request;
}

bool is_ruled_out(const Change& base, const PlanRequest& request, Evaluator& evaluator) {
  const std::optional<LeastOfAll> least = least_of_all(base.job, request, evaluator);
  return least && least->is_ruled_out;
}

/// The fastest job of a group of bases that fits and is faster than `above`, if there is one. Of the counts only bounds
/// grow: a plan has no choice of these configurations.
std::optional<Fitting> fastest_of(std::vector<Change> bases, const PlanRequest& request, Evaluator& evaluator,
                                  double above, Alike alike, SearchCounts& counts) {
  std::erase_if(bases, [&](const Change& base) { return is_ruled_out(base, request, evaluator); });
  if (bases.empty()) return std::nullopt;
  SearchCounts others;
  BestFirst queue(evaluator, request, bases, BestBy::speed, others);
  if (alike == Alike::one) queue.look_at_one_of_alike();
  std::optional<Fitting> found = first_that_fits(queue, evaluator, above);
  counts.bounds += others.bounds;
  return found;
}

OtherCluster named(const Cluster& cluster, const Fitting& found) {
  return {.gpus = cluster.text,
          .job = found.option.job,
          .total = found.rank.total,
          .tokens_per_second = found.option.tokens_per_second};
}

/// As a plan would answer there, with the changes that are allowed where they are needed.
std::optional<OtherCluster> plan_on(const Cluster& cluster, const PlanRequest& asked,
                                    const std::shared_ptr<ModelStages>& model) {
  const PlanRequest request = resolved_on(cluster, asked);
  Evaluator evaluator(request, model);
  SearchCounts counts;
  for (std::vector<Change>& bases : groups_to_search(request)) {
    const std::optional<Fitting> found = fastest_of(std::move(bases), request, evaluator, -1, Alike::all, counts);
    if (found) return named(cluster, *found);
  }
  return std::nullopt;
}

/// The job as it was asked for, if it is faster than `above` there.
std::optional<OtherCluster> fastest_on(const Cluster& cluster, const PlanRequest& asked, double above,
                                       SearchCounts& counts, const std::shared_ptr<ModelStages>& model) {
  const PlanRequest request = resolved_on(cluster, asked);
  Evaluator evaluator(request, model);
  const std::optional<Fitting> found =
      fastest_of({{.job = request.job}}, request, evaluator, above, Alike::all, counts);
  return found ? std::optional(named(cluster, *found)) : std::nullopt;
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
      if (std::optional<OtherCluster> found = plan_on(cluster, asked, model)) return found;
    } catch (const Error&) {
      continue;  // the job can't be on so many
    }
  }
  return std::nullopt;
}

namespace {

const Bytes kMostHostMemory = 4096 * kGiB;  // than any node has
constexpr std::int64_t kFarLess = 2;        // so many times less host memory is worth a change

/// The first of these groups in which something fits with so much host memory.
std::optional<OffloadedPlan> offloaded_by(std::vector<std::vector<Change>> groups, PlanRequest request, Bytes most,
                                          const std::shared_ptr<ModelStages>& model) {
  request.cluster.host_memory = most;
  Evaluator evaluator(request, model);
  SearchCounts counts;
  for (std::vector<Change>& bases : groups) {
    const std::optional<Fitting> found = fastest_of(std::move(bases), request, evaluator, -1, Alike::one, counts);
    if (!found) continue;
    return OffloadedPlan{.job = found->option.job,
                         .host = request.cluster.cards_per_node * found->rank.host,
                         .total = found->rank.total,
                         .tokens_per_second = found->option.tokens_per_second,
                         .needs = found->option.needs};
  }
  return std::nullopt;
}

PlanRequest with_most_host_memory(const PlanRequest& asked) {
  Cluster cluster = asked.cluster;
  cluster.host_memory = kMostHostMemory;
  return resolved_on(cluster, asked);
}

}  // namespace

bool could_offload(const PlanRequest& request) {
  if (request.cluster.is_cpu() || request.is_fixed("offload")) return false;
  Cluster roomy = request.cluster;
  roomy.host_memory = kMostHostMemory;
  const Efficiency efficiency = efficiency_of(request.cluster);
  const SearchSpace space{.spec = request.spec, .cluster = roomy, .efficiency = efficiency, .clip = request.clip};
  return dimension::offload().choices(request.job, space).size() > 1;
}

std::vector<OffloadedPlan> with_host_memory(const PlanRequest& asked, const std::shared_ptr<ModelStages>& model) {
  std::vector<OffloadedPlan> list;
  if (!could_offload(asked)) return list;
  try {
    const PlanRequest request = with_most_host_memory(asked);
    Bytes most = kMostHostMemory;
    for (std::vector<Change>& bases : groups_to_search(request)) {
      const std::optional<OffloadedPlan> found = offloaded_by({std::move(bases)}, request, most, model);
      if (!found) continue;
      if (list.size() > 1) list.pop_back();
      list.push_back(*found);
      most = Bytes{found->host.n / kFarLess};
    }
  } catch (const Error&) {
    return list;
  }
  return list;
}

std::optional<OffloadedPlan> with_less_host_memory(const PlanRequest& asked, Bytes host,
                                                   const std::shared_ptr<ModelStages>& model) {
  std::optional<OffloadedPlan> least;
  if (asked.job.runtime != Runtime::vramfit || !could_offload(asked)) return least;
  try {
    const PlanRequest request = with_most_host_memory(asked);
    Bytes most{host.n / kFarLess};
    for (const Change& change : changes_not_allowed(request, true)) {
      if (change.kinds.front()->shrinks) continue;
      const std::optional<OffloadedPlan> found = offloaded_by(groups_with(request, change), request, most, model);
      if (!found) continue;
      least = found;
      most = Bytes{found->host.n / kFarLess};
    }
  } catch (const Error&) {
    return least;
  }
  return least;
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
