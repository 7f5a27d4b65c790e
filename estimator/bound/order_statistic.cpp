#include "estimator/bound/order_statistic.h"

namespace vramfit {

std::optional<std::size_t> covering_rank(std::size_t cases, Confidence confidence) {
  const auto whole = static_cast<std::size_t>(kCertain.per_ten_thousand);
  const auto share = static_cast<std::size_t>(confidence.per_ten_thousand);
  const std::size_t rank = ((cases + 1) * share + whole - 1) / whole;
  if (rank == 0 || rank > cases) return std::nullopt;
  return rank;
}

Confidence most_confidence(std::size_t cases) {
  const auto whole = static_cast<std::size_t>(kCertain.per_ten_thousand);
  return {static_cast<int>(cases * whole / (cases + 1))};
}

}  // namespace vramfit
