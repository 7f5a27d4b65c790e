// Without a cluster: what a job needs on one card, and which cards of the catalog, and how many, would hold it.
#pragma once

#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "estimator/fit_on_cards.h"

namespace vramfit {

/// The fewest cards of one sort that hold a job: powers of two, eight to a node.
struct FewestCards {
  std::string cluster;       // "2x8xH100-80GB"; "" when none do
  std::int64_t cards = 0;    // 0 likewise
  Bytes total, upper_bound;  // each card's, of `cards`
};

/// What the answer for one sort of cards is.
enum class CardAnswer {
  holds,        // some number of them
  does_not,     // kMostCards or fewer
  lacks_rules,  // for the job on some number of them, and no other number holds it
  cannot_run    // whatever their number: units or kernels that it hasn't
};

struct CardRequirement {
  const Card* card = nullptr;  // of card_catalog()
  CardAnswer answer = CardAnswer::does_not;
  std::string why;             // of lacks_rules and cannot_run, with kSuchACard for the card's name
  FewestCards fewest;          // if it holds the job
  FewestCards fewest_changed;  // if the job doesn't fit and some do with CardRequirements::change
};

struct CardRequirements {
  Estimate one_card;                   // as if a card of kOneCard's kind had no limit
  std::vector<CardRequirement> cards;  // largest memory first; none when one_card is not modelled
  std::string change;                  // as flags, of the job that was tried where none hold it; "": none was
};

inline constexpr const char* kOneCard = "H100-80GB";
inline constexpr const char* kSuchACard = "such a card";
inline constexpr std::int64_t kMostCards = 512;

/// `confidence`: of upper bounds, as set_confidence() reads it. Throws InputError when the job contradicts itself on
/// any number of cards.
CardRequirements card_requirements(const ModelSpec& spec, const JobOn& job_on, const EstimateOptions& options,
                                   Confidence confidence = {});

}  // namespace vramfit
