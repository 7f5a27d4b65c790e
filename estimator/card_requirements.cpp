#include "estimator/card_requirements.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "job/cluster/card_names.h"

namespace vramfit {

namespace {

constexpr std::int64_t kCardsPerNode = 8;
constexpr Bytes kAmpleMemory{std::int64_t{1} << 50};

Cluster cluster_of(const Card& card, std::int64_t cards, Confidence confidence) {
  Cluster cluster;
  cluster.confidence = confidence;
  cluster.card = card;
  cluster.cards_per_node = std::min(cards, kCardsPerNode);
  cluster.nodes = cards / cluster.cards_per_node;
  const std::string nodes = cluster.nodes == 1 ? "" : fmt::format("{}x", cluster.nodes);
  cluster.text = fmt::format("{}{}x{}", nodes, cluster.cards_per_node, card.name);
  return cluster;
}

/// What every card has in common: the job, and why it could not be estimated.
class Requirements {
 public:
  Requirements(const ModelSpec& spec, const JobOn& job_on, const EstimateOptions& options, Confidence confidence)
      : spec_(spec), job_on_(job_on), options_(options), confidence_(confidence) {}

  /// Asked of the largest card first: it needs no more of its sort than a smaller one.
  CardRequirement of(const Card& card) {
    CardRequirement requirement{.card = &card, .cluster = "", .cards = 0, .total = {}, .upper_bound = {}};
    std::int64_t too_few = 0;
    bool is_counted = false, lacks_rules = false;
    for (std::int64_t cards = first_to_try(); cards <= kMostCards; cards *= 2) {
      const Cluster cluster = cluster_of(card, cards, confidence_);
      try {
        const std::optional<RankEstimate> rank = rank_if_it_fits(spec_, job_on_(cluster), cluster, options_);
        is_counted = true;
        if (!rank) {
          too_few = cards;
          continue;
        }
        requirement.cluster = cluster.text;
        requirement.cards = cards;
        requirement.total = rank->total;
        requirement.upper_bound = rank->upper_bound;
        break;
      } catch (const InputError&) {
        continue;  // a mesh or a batch that doesn't divide
      } catch (const NotModelled&) {
        lacks_rules = true;
      }
    }
    requirement.is_modelled = is_counted || !lacks_rules;
    least_ = std::max(least_, requirement.cards > 0 ? requirement.cards : too_few);
    if (is_counted) too_few_ = too_few == kMostCards;
    return requirement;
  }

  /// On the fewest cards on which the job can be: one, unless its mesh or batch asks for more.
  Estimate without_limit() {
    Card card = *find_card(kOneCard);
    card.memory = kAmpleMemory;
    for (std::int64_t cards = 1; cards <= kMostCards; cards *= 2) {
      if (std::optional<Estimate> found = estimated(cluster_of(card, cards, confidence_))) return std::move(*found);
    }
    throw InputError(refusal_);
  }

 private:
  /// Half of what a larger card took, as kernels of another generation may need a little less. Where the most were too
  /// few, only they are tried again.
  std::int64_t first_to_try() const { return too_few_ ? kMostCards : std::max<std::int64_t>(1, least_ / 2); }

  /// None where the job can't be on so many cards: a mesh or a batch that doesn't divide.
  std::optional<Estimate> estimated(const Cluster& cluster) {
    try {
      return estimate(spec_, job_on_(cluster), cluster, options_);
    } catch (const InputError& error) {
      if (refusal_.empty()) refusal_ = error.what();
      return std::nullopt;
    }
  }

  const ModelSpec& spec_;
  const JobOn& job_on_;
  const EstimateOptions& options_;
  Confidence confidence_;
  std::string refusal_;     // the first one
  std::int64_t least_ = 1;  // what the larger cards took, or the most that were too few of them
  bool too_few_ = false;    // kMostCards of the last card that could be counted
};

}  // namespace

CardRequirements card_requirements(const ModelSpec& spec, const JobOn& job_on, const EstimateOptions& options,
                                   Confidence confidence) {
  Requirements requirements(spec, job_on, options, confidence);
  CardRequirements result{.one_card = requirements.without_limit(), .cards = {}};
  if (result.one_card.verdict == Verdict::not_modelled) return result;
  std::vector<const Card*> cards;
  for (const Card& card : card_catalog()) cards.push_back(&card);
  std::ranges::stable_sort(cards, std::greater<>(), [](const Card* card) { return card->memory; });
  for (const Card* card : cards) result.cards.push_back(requirements.of(*card));
  return result;
}

}  // namespace vramfit
