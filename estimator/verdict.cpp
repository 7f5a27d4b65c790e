// What is said of a rank that was estimated.
#include <algorithm>

#include <fmt/format.h>

#include "estimator/estimate.h"
#include "estimator/rank_estimate.h"

namespace vramfit {

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits:
      return "fits";
    case Verdict::at_risk:
      return "at_risk";
    case Verdict::does_not_fit:
      return "does_not_fit";
    case Verdict::not_modelled:
      return "not_modelled";
  }
  return "not_modelled";
}

std::string retries_text(const RankEstimate& rank) {
  if (rank.alloc_retries == 0 && rank.later_retries == 0) return "none, as cached memory is released early";
  std::string text = fmt::format("{} in the first two steps", rank.alloc_retries);
  if (rank.later_retries > 0) text += fmt::format(", then up to {} per step", rank.later_retries);
  return text;
}

double band_width(const RankEstimate& rank) {
  if (rank.least_reserved.n <= 0) return 0;
  return static_cast<double>((rank.peak_reserved - rank.least_reserved).n) / static_cast<double>(rank.peak_reserved.n);
}

Verdict verdict_of(const RankEstimate& rank, Bytes capacity) {
  if (rank.out_of_memory) return Verdict::does_not_fit;
  if (rank.gives_back || rank.reserved_grows) return Verdict::at_risk;
  if (rank.upper_bound <= capacity) return Verdict::fits;
  return rank.total <= capacity ? Verdict::at_risk : Verdict::does_not_fit;
}

Verdict verdict_of(const RankEstimate& rank, const Cluster& cluster) {
  if (exceeds_host_memory(cluster.cards_per_node * rank.host, cluster)) return Verdict::does_not_fit;
  return verdict_of(rank, cluster.card.memory);
}

Bytes managed_on_card(const RankEstimate& rank, Bytes capacity) {
  return std::min(rank.managed, std::max(Bytes{}, capacity - rank.total));
}

bool exceeds_host_memory(Bytes host, const Cluster& cluster) {
  return cluster.host_memory.n > 0 && !cluster.is_cpu() && host > cluster.host_memory;
}

}  // namespace vramfit
