// A configuration as its file has it: scalars, lists and maps, each with the line that it is in. YAML, TOML, JSON and
// command lines are read into the same form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

// Far above any configuration; what is beyond is refused.
inline constexpr std::size_t kMostConfigBytes = std::size_t{1} << 20;
inline constexpr int kMostConfigDepth = 32;
inline constexpr std::size_t kMostConfigNodes = 20000;  // aliases of YAML count as what they stand for

struct ConfigNode {
  enum class Kind : std::uint8_t { null, boolean, integer, real, text, list, map } kind = Kind::null;
  bool boolean = false;
  int line = 0;    // of its key, where it has one; from 1
  int number = 0;  // of its place among those of a file (number_nodes), which copies keep; 0: of none
  std::int64_t integer = 0;
  double real = 0;                // also of an integer
  std::string text;               // of every scalar, as it is written
  std::string file;               // where it stands, if that isn't where the rest of its tree does
  std::vector<std::string> keys;  // of a map: keys[i] names items[i]
  std::vector<ConfigNode> items;

  bool is_map() const { return kind == Kind::map; }
  bool is_list() const { return kind == Kind::list; }
  bool is_null() const { return kind == Kind::null; }
  bool is_scalar() const { return !is_map() && !is_list(); }
};

/// The value of `key` in a map; null where it is missing, or `node` is no map.
const ConfigNode* find_in(const ConfigNode& node, std::string_view key);

/// The value of "training.seq_len", through maps; null where it is missing.
const ConfigNode* find_path(const ConfigNode& node, std::string_view path);

/// Of a scalar what is written, of a list "[a, b]", of a map "{...}"; short, for messages.
std::string shown(const ConfigNode& node);

/// A scalar of a command line or of another place where everything is text: also a number, where it is one.
ConfigNode text_node(std::string_view text, int line);

/// Puts `value` under `key`, instead of what is there.
void put(ConfigNode& map, std::string_view key, ConfigNode value);

/// Number of nodes of the tree.
std::size_t node_count(const ConfigNode& node);

/// Gives each node a number of its own, above `last`; returns the greatest.
int number_nodes(ConfigNode& node, int last);

/// "FILE:LINE: ", for messages.
std::string place(std::string_view file, int line);

}  // namespace vramfit
