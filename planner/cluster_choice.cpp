#include "planner/cluster_choice.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/characters.h"
#include "base/text/suggest.h"
#include "job/cluster/cluster_text.h"
#include "job/cluster/host_memory.h"
#include "job/fields/field_text.h"

namespace vramfit {

namespace {

constexpr std::string_view kAuto = "auto:";
constexpr std::size_t kMostClusters = 64;
constexpr std::int64_t kUsualCardsOfANode = 8;

/// Which numbers of cards are tried, as others may do too: 7 where 8 are the answer.
std::string tried_text(const Cluster& node, std::string_view card) {
  std::string sizes;
  for (std::int64_t cards = 1; cards < node.cards_per_node; cards *= 2) sizes += fmt::format("{}, ", cards);
  const std::string nodes = node.is_cpu() ? "" : fmt::format(", and nodes of {}", node.cards_per_node);
  return fmt::format("the fewest of the numbers that --gpus auto: tries: {}{}{}; auto:Nx{} tries nodes of N", sizes,
                     node.cards_per_node, nodes, printable(card));
}

ClusterChoice sizes_of(std::string_view text, std::string_view sort) {
  const bool has_count = sort.find('x') != std::string_view::npos && is_digit(sort.front());
  const Cluster node = parse_cluster(has_count ? std::string(sort) : cluster_text(1, kUsualCardsOfANode, sort));
  if (node.nodes > 1) {
    throw InputError(
        fmt::format("--gpus {}: after auto: comes a card, or a node of them, such as auto:4xRTX4090", printable(text)));
  }
  const std::string_view card = has_count ? sort.substr(sort.find('x') + 1) : sort;
  ClusterChoice choice{.clusters = {}, .asks_how_many = true};
  for (std::int64_t cards = 1; cards < node.cards_per_node; cards *= 2) {
    choice.clusters.push_back(parse_cluster(cluster_text(1, cards, card)));
  }
  choice.clusters.push_back(parse_cluster(cluster_text(1, node.cards_per_node, card)));
  for (std::int64_t nodes = 2; !node.is_cpu() && nodes <= kMostAutoNodes; ++nodes) {
    choice.clusters.push_back(parse_cluster(cluster_text(nodes, node.cards_per_node, card)));
  }
  const std::string note = tried_text(node, card);
  for (Cluster& cluster : choice.clusters) cluster.notes.push_back(note);
  return choice;
}

/// Parted by commas, but for that before a node's host memory.
std::vector<std::string> cluster_texts(std::string_view text) {
  std::vector<std::string> texts;
  for (std::string& part : split_list(text)) {
    if (part.starts_with(kHostMemoryKey) && !texts.empty()) {
      texts.back() += "," + part;
    } else {
      texts.push_back(std::move(part));
    }
  }
  return texts;
}

[[noreturn]] void refuse_auto_in_list(std::string_view text) {
  throw InputError(fmt::format(
      "--gpus {}: auto: stands alone, as it asks how many GPUs of one sort it takes; give each cluster of a "
      "list its number of GPUs, such as 8xH100-80GB,8xA100-80GB",
      printable(text)));
}

}  // namespace

ClusterChoice parse_cluster_choice(std::string_view text) {
  const std::vector<std::string> parts = cluster_texts(text);
  const auto is_auto = [](std::string_view part) { return part.starts_with(kAuto); };
  if (parts.size() > 1 && std::ranges::any_of(parts, is_auto)) refuse_auto_in_list(text);
  if (text.starts_with(kAuto)) {
    const std::string_view sort = text.substr(kAuto.size());
    if (sort.empty()) throw InputError("--gpus auto: a card is missing, such as auto:H100-80GB");
    return sizes_of(text, sort);
  }
  ClusterChoice choice;
  for (const std::string& part : parts) choice.clusters.push_back(parse_cluster(part));
  if (choice.clusters.size() > kMostClusters) {
    throw InputError(fmt::format("--gpus: {} clusters; at most {}", choice.clusters.size(), kMostClusters));
  }
  return choice;
}

}  // namespace vramfit
