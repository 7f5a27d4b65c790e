#include "job/cluster/cluster_text.h"

#include <algorithm>

#include <fmt/format.h>

namespace vramfit {

std::string_view card_text(std::string_view cluster) {
  while (true) {
    const std::size_t digits = std::min(cluster.find_first_not_of("0123456789"), cluster.size());
    if (digits == 0 || digits == cluster.size() || (cluster[digits] != 'x' && cluster[digits] != 'X')) return cluster;
    cluster.remove_prefix(digits + 1);
  }
}

std::string cluster_text(std::int64_t nodes, std::int64_t cards_per_node, std::string_view card) {
  const std::string before = nodes == 1 ? "" : fmt::format("{}x", nodes);
  return fmt::format("{}{}x{}", before, cards_per_node, card);
}

}  // namespace vramfit
