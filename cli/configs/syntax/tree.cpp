#include "cli/configs/syntax/tree.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/text/suggest.h"

namespace vramfit {

const ConfigNode* find_in(const ConfigNode& node, std::string_view key) {
  const auto found = std::ranges::find(node.keys, key);
  return found == node.keys.end() ? nullptr : &node.items[static_cast<std::size_t>(found - node.keys.begin())];
}

const ConfigNode* find_path(const ConfigNode& node, std::string_view path) {
  const ConfigNode* at = &node;
  while (at != nullptr && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    at = find_in(*at, path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

std::string shown(const ConfigNode& node) {
  constexpr std::size_t kLongest = 60, kItems = 8;
  if (node.is_map()) return "{...}";
  if (!node.is_list()) return printable(node.text, kLongest);
  std::string text;
  for (std::size_t i = 0; i < std::min(node.items.size(), kItems); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", shown(node.items[i]));
  }
  return printable(fmt::format("[{}{}]", text, node.items.size() > kItems ? ", ..." : ""), 2 * kLongest);
}

ConfigNode text_node(std::string_view text, int line) {
  ConfigNode node;
  node.kind = ConfigNode::Kind::text;
  node.text = text;
  node.line = line;
  const char* const end = text.data() + text.size();
  if (const auto whole = std::from_chars(text.data(), end, node.integer);
      whole.ec == std::errc{} && whole.ptr == end && !text.empty()) {
    node.kind = ConfigNode::Kind::integer;
    node.real = static_cast<double>(node.integer);
  } else if (const auto part = std::from_chars(text.data(), end, node.real);
             part.ec == std::errc{} && part.ptr == end && std::isfinite(node.real)) {
    node.kind = ConfigNode::Kind::real;
  }
  return node;
}

void put(ConfigNode& map, std::string_view key, ConfigNode value) {
  map.kind = ConfigNode::Kind::map;
  const auto found = std::ranges::find(map.keys, key);
  if (found == map.keys.end()) {
    map.keys.emplace_back(key);
    map.items.push_back(std::move(value));
  } else {
    map.items[static_cast<std::size_t>(found - map.keys.begin())] = std::move(value);
  }
}

std::size_t node_count(const ConfigNode& node) {
  std::size_t count = 1;
  for (const ConfigNode& item : node.items) count += node_count(item);
  return count;
}

int number_nodes(ConfigNode& node, int last) {
  node.number = last + 1;
  int greatest = node.number;
  for (ConfigNode& item : node.items) greatest = number_nodes(item, greatest);
  return greatest;
}

std::string place(std::string_view file, int line) {
  constexpr std::size_t kLongest = 300;
  return fmt::format("{}:{}: ", printable(file, kLongest), line);
}

}  // namespace vramfit
