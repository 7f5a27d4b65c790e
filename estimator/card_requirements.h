// Without a cluster: what a job needs on one card, and which cards of the catalog, and how many, would hold it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "estimator/estimate.h"

namespace vramfit {

/// The fewest cards of one sort that hold the job: powers of two, eight to a node.
struct CardRequirement {
  const Card* card = nullptr;  // of card_catalog()
  std::string cluster;         // "2x8xH100-80GB"; "" when kMostCards of them don't hold it, or it isn't modelled there
  bool is_modelled = true;
  std::int64_t cards = 0;    // 0 likewise
  Bytes total, upper_bound;  // each card's, of `cards`
};

struct CardRequirements {
  Estimate one_card;                   // as if a card of kOneCard's kind had no limit
  std::vector<CardRequirement> cards;  // largest memory first; none when one_card is not modelled
};

inline constexpr const char* kOneCard = "H100-80GB";
inline constexpr std::int64_t kMostCards = 512;

/// The job on a cluster, unresolved: a library's runtime may be another on several GPUs.
using JobOn = std::function<Job(const Cluster& cluster)>;

/// `confidence`: of upper bounds, as set_confidence() reads it. Throws InputError when the job contradicts itself on
/// any number of cards.
CardRequirements card_requirements(const ModelSpec& spec, const JobOn& job_on, const EstimateOptions& options,
                                   Confidence confidence = {});

}  // namespace vramfit
