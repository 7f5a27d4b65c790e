#include "planner/cluster_choice.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

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
std::string tried_text(const Cluster& node, std::string_view card, std::span<const std::int64_t> counts) {
  const std::string nodes = node.is_cpu() ? "" : fmt::format(", and nodes of {}", node.cards_per_node);
  return fmt::format("the fewest of the numbers that --gpus auto: tries: {}{}; auto:Nx{} tries nodes of N",
                     fmt::join(counts, ", "), nodes, printable(card));
}

/// Of one node, the smallest first: powers of two and all its cards, or what divides a global batch that is set.
std::vector<std::int64_t> counts_of(const Cluster& node, std::int64_t global_batch) {
  const std::int64_t most = node.cards_per_node;
  std::vector<std::int64_t> counts;
  for (std::int64_t cards = 1; cards < most; ++cards) {
    const bool is_power_of_two = (cards & (cards - 1)) == 0;
    if (global_batch == 0 ? is_power_of_two : global_batch % cards == 0) counts.push_back(cards);
  }
  counts.push_back(most);
  return counts;
}

ClusterChoice sizes_of(std::string_view text, std::string_view sort, std::int64_t global_batch) {
  const bool has_count = sort.find('x') != std::string_view::npos && is_digit(sort.front());
  const Cluster node = parse_cluster(has_count ? std::string(sort) : cluster_text(1, kUsualCardsOfANode, sort));
  if (node.nodes > 1) {
    throw InputError(
        fmt::format("--gpus {}: after auto: comes a card, or a node of them, such as auto:4xRTX4090", printable(text)));
  }
  const std::string_view card = has_count ? sort.substr(sort.find('x') + 1) : sort;
  ClusterChoice choice{.clusters = {}, .asks_how_many = true};
  const std::vector<std::int64_t> counts = counts_of(node, global_batch);
  for (const std::int64_t cards : counts) choice.clusters.push_back(parse_cluster(cluster_text(1, cards, card)));
  for (std::int64_t nodes = 2; !node.is_cpu() && nodes <= kMostAutoNodes; ++nodes) {
    choice.clusters.push_back(parse_cluster(cluster_text(nodes, node.cards_per_node, card)));
  }
  const std::string note = tried_text(node, card, counts);
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

ClusterChoice parse_cluster_choice(std::string_view text, std::int64_t global_batch) {
  const std::vector<std::string> parts = cluster_texts(text);
  const auto is_auto = [](std::string_view part) { return part.starts_with(kAuto); };
  if (parts.size() > 1 && std::ranges::any_of(parts, is_auto)) refuse_auto_in_list(text);
  if (text.starts_with(kAuto)) {
    const std::string_view sort = text.substr(kAuto.size());
    if (sort.empty()) throw InputError("--gpus auto: a card is missing, such as auto:H100-80GB");
    return sizes_of(text, sort, global_batch);
  }
  ClusterChoice choice;
  for (const std::string& part : parts) choice.clusters.push_back(parse_cluster(part));
  if (choice.clusters.size() > kMostClusters) {
    throw InputError(fmt::format("--gpus: {} clusters; at most {}", choice.clusters.size(), kMostClusters));
  }
  return choice;
}

}  // namespace vramfit
