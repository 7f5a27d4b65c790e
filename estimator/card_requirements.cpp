#include "estimator/card_requirements.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "job/card_names.h"

namespace vramfit {

namespace {

constexpr std::int64_t kCardsPerNode = 8;
constexpr Bytes kNoLimit{std::int64_t{1} << 50};

Cluster cluster_of(const Card& card, std::int64_t cards) {
  Cluster cluster;
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
  Requirements(const ModelSpec& spec, const Job& job, const EstimateOptions& options)
      : spec_(spec), job_(job), options_(options) {}

  /// A larger card needs no more of its sort, so that `least` cards are where a smaller one begins.
  CardRequirement of(const Card& card, std::int64_t least) {
    CardRequirement requirement{.card = &card, .cluster = "", .cards = 0, .total = {}, .upper_bound = {}};
    for (std::int64_t cards = least; cards <= kMostCards; cards *= 2) {
      const std::optional<Estimate> found = estimated(cluster_of(card, cards));
      if (!found || found->verdict != Verdict::fits) continue;
      const RankEstimate& rank = found->ranks.at(static_cast<std::size_t>(found->worst));
      requirement.cluster = found->cluster.text;
      requirement.cards = cards;
      requirement.total = rank.total;
      requirement.upper_bound = rank.upper_bound;
      break;
    }
    return requirement;
  }

  /// On the fewest cards on which the job can be: one, unless its mesh or batch asks for more.
  Estimate without_limit() {
    Card card = *find_card(kOneCard);
    card.memory = kNoLimit;
    for (std::int64_t cards = 1; cards <= kMostCards; cards *= 2) {
      if (std::optional<Estimate> found = estimated(cluster_of(card, cards))) return std::move(*found);
    }
    throw InputError(refusal_);
  }

 private:
  /// None where the job can't be on so many cards: a mesh or a batch that doesn't divide.
  std::optional<Estimate> estimated(const Cluster& cluster) {
    try {
      return estimate(spec_, job_, cluster, options_);
    } catch (const InputError& error) {
      if (refusal_.empty()) refusal_ = error.what();
      return std::nullopt;
    }
  }

  const ModelSpec& spec_;
  const Job& job_;
  const EstimateOptions& options_;
  std::string refusal_;  // the first one
};

}  // namespace

CardRequirements card_requirements(const ModelSpec& spec, const Job& job, const EstimateOptions& options) {
  Requirements requirements(spec, job, options);
  CardRequirements result{.one_card = requirements.without_limit(), .cards = {}};
  if (result.one_card.verdict == Verdict::not_modelled) throw NotModelled(result.one_card.why);
  std::vector<const Card*> cards;
  for (const Card& card : card_catalog()) cards.push_back(&card);
  std::ranges::stable_sort(cards, std::greater<>(), [](const Card* card) { return card->memory; });
  std::int64_t least = 1;
  for (const Card* card : cards) {
    // Half of what the larger card took, as kernels of another generation may need a little less.
    result.cards.push_back(requirements.of(*card, std::max<std::int64_t>(1, least / 2)));
    least = std::max(least, result.cards.back().cards);
  }
  return result;
}

}  // namespace vramfit
