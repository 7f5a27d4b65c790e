#include "estimator/card_requirements.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "job/cluster/card_names.h"

namespace vramfit {

namespace {

constexpr std::int64_t kCardsPerNode = 8;
constexpr Bytes kAmpleMemory{std::int64_t{1} << 50};
constexpr std::int64_t kTriedChunks = 8;

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

/// On the fewest cards on which the job can be: one, unless its mesh or batch asks for more.
Estimate without_limit(const ModelSpec& spec, const JobOn& job_on, const EstimateOptions& options,
                       Confidence confidence) {
  Card card = *find_card(kOneCard);
  card.memory = kAmpleMemory;
  std::string refusal;  // the first one
  for (std::int64_t cards = 1; cards <= kMostCards; cards *= 2) {
    const Cluster cluster = cluster_of(card, cards, confidence);
    try {
      return estimate(spec, job_on(cluster), cluster, options);
    } catch (const InputError& error) {
      if (refusal.empty()) refusal = error.what();
    }
  }
  throw InputError(refusal);
}

/// What the numbers of one sort of cards that were tried say together.
class Trial {
 public:
  explicit Trial(const Card& card) : card_(&card) {}

  const Card& card() const { return *card_; }
  bool is_settled() const { return fewest_.cards > 0; }

  void add(const Fit& fit, const Cluster& cluster) {
    if (fit.rank) {
      const std::int64_t cards = cluster.cards();
      fewest_ = {cluster_of(*card_, cards, {}).text, cards, fit.rank->total, fit.rank->upper_bound};
    }
    is_counted_ = is_counted_ || fit.is_counted();
    if (lacking_.empty()) lacking_ = fit.lacking;
    if (refusal_.empty()) refusal_ = fit.refusal;
  }

  CardRequirement requirement() const {
    CardRequirement result{.card = card_, .why = "", .fewest = fewest_, .fewest_changed = {}};
    if (is_settled()) {
      result.answer = CardAnswer::holds;
    } else if (!lacking_.empty()) {
      result.answer = CardAnswer::lacks_rules;
      result.why = lacking_;
    } else if (!is_counted_) {
      result.answer = CardAnswer::cannot_run;
      result.why = refusal_;
    }
    return result;
  }

 private:
  const Card* card_;
  FewestCards fewest_;
  bool is_counted_ = false;
  std::string lacking_, refusal_;  // the first ones
};

/// More cards may need more memory each (weights of experts are gathered whole, whatever their number), and equal
/// memory holds more of a job on a card of another generation, so each number is tried on each sort of cards until one
/// holds the job.
std::vector<CardRequirement> tried_on(const std::vector<const Card*>& cards, FitOnCards& fit_on_cards,
                                      std::int64_t fewest, Confidence confidence) {
  std::vector<Trial> trials;
  for (const Card* card : cards) trials.emplace_back(*card);
  for (std::int64_t number = fewest; number <= kMostCards; number *= 2) {
    std::vector<Trial*> open;
    std::vector<Cluster> clusters;
    for (Trial& trial : trials) {
      if (trial.is_settled()) continue;
      open.push_back(&trial);
      clusters.push_back(cluster_of(trial.card(), number, confidence));
      clusters.back().card.name = kSuchACard;
    }
    const std::vector<Fit> fits = fit_on_cards.of(clusters);
    for (std::size_t i = 0; i < open.size(); ++i) open[i]->add(fits[i], clusters[i]);
  }
  std::vector<CardRequirement> requirements;
  for (const Trial& trial : trials) requirements.push_back(trial.requirement());
  return requirements;
}

/// The job with less on the card at once and the same result, and the change as flags; "" if it has that already.
struct LessAtOnce {
  bool checkpoints = false, chunks = false;

  explicit LessAtOnce(const Job& job)
      : checkpoints(!std::holds_alternative<FullCheckpointing>(job.checkpointing)),
        chunks(job.runtime == Runtime::vramfit && !std::holds_alternative<ChunkedLoss>(job.loss)) {}

  std::string flags() const {
    std::string text = checkpoints ? "--checkpointing full" : "";
    if (chunks) text += fmt::format("{}--loss chunked:{}", text.empty() ? "" : " ", kTriedChunks);
    return text;
  }

  Job of(Job job) const {
    if (checkpoints) job.checkpointing = FullCheckpointing{};
    if (chunks) job.loss = ChunkedLoss{kTriedChunks};
    return job;
  }
};

}  // namespace

CardRequirements card_requirements(const ModelSpec& spec, const JobOn& job_on, const EstimateOptions& options,
                                   Confidence confidence) {
  CardRequirements result{.one_card = without_limit(spec, job_on, options, confidence), .cards = {}, .change = ""};
  if (result.one_card.verdict == Verdict::not_modelled) return result;
  const std::int64_t fewest = result.one_card.cluster.cards();
  std::vector<const Card*> cards;
  for (const Card& card : card_catalog()) cards.push_back(&card);
  std::ranges::stable_sort(cards, std::greater<>(), [](const Card* card) { return card->memory; });
  FitOnCards as_it_is(spec, job_on, options.run);
  result.cards = tried_on(cards, as_it_is, fewest, confidence);

  const LessAtOnce less(result.one_card.job);
  std::vector<const Card*> too_small;
  for (const CardRequirement& row : result.cards) {
    if (row.answer == CardAnswer::does_not) too_small.push_back(row.card);
  }
  if (less.flags().empty() || too_small.empty()) return result;
  result.change = less.flags();
  const JobOn changed_on = [&](const Cluster& cluster) { return less.of(job_on(cluster)); };
  FitOnCards changed(spec, changed_on, options.run);
  for (const CardRequirement& row : tried_on(too_small, changed, fewest, confidence)) {
    std::ranges::find(result.cards, row.card, &CardRequirement::card)->fewest_changed = row.fewest;
  }
  return result;
}

}  // namespace vramfit
