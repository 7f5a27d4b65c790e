#include "cli/configs/overrides.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/configs/syntax/yaml.h"

namespace vramfit {
namespace {

/// "optimizer.fused": true, in maps that are made where they are missing. The name of a component alone stands for its
/// _component_ (torchtune/config/_utils.py: _merge_yaml_and_cli_args).
void put_path(ConfigNode& map, std::string_view path, ConfigNode value) {
  const std::size_t dot = path.find('.');
  if (dot == std::string_view::npos) {
    const ConfigNode* const before = find_in(map, path);
    const bool is_component = before != nullptr && find_in(*before, "_component_") != nullptr && !value.is_map();
    if (is_component) return put_path(map, fmt::format("{}._component_", path), std::move(value));
    put(map, path, std::move(value));
    return;
  }
  const ConfigNode* found = find_in(map, path.substr(0, dot));
  ConfigNode inner;
  if (found != nullptr) {
    inner = *found;
  } else {
    inner.file = value.file;
    inner.line = value.line;
  }
  put_path(inner, path.substr(dot + 1), std::move(value));
  put(map, path.substr(0, dot), std::move(inner));
}

void remove_path(ConfigNode& map, std::string_view path) {
  const std::size_t dot = path.find('.');
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    if (map.keys[i] != path.substr(0, dot)) continue;
    if (dot != std::string_view::npos) return remove_path(map.items[i], path.substr(dot + 1));
    map.keys.erase(map.keys.begin() + static_cast<std::ptrdiff_t>(i));
    map.items.erase(map.items.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

void place_all(ConfigNode& node, const std::string& file, int line) {
  node.file = file;
  node.line = line;
  for (ConfigNode& item : node.items) place_all(item, file, line);
}

}  // namespace

Override override_of(std::string key, std::string_view value, const ShellWord& word, const std::string& file) {
  ConfigNode node;
  if (!word.is_plain) {
    node = text_node(fmt::format("{} (a variable of the shell)", value), word.line);
  } else if (value == "None") {  // torchtune's null
    node = ConfigNode{};
  } else if (value.starts_with('[') || value.starts_with('{') || value.starts_with('"') || value.starts_with('\'')) {
    node = read_yaml(fmt::format("value: {}\n", value), file).items.front();
  } else {
    node = plain_yaml_scalar(value, word.line);
  }
  place_all(node, file, word.line);
  return {.key = std::move(key), .value = std::move(node)};
}

std::vector<Override> overrides_of(const ConfigNode& flags, const std::string& file) {
  std::vector<Override> list;
  for (std::size_t i = 0; i < flags.keys.size(); ++i) {
    list.push_back({.key = flags.keys[i], .value = flags.items[i]});
    place_all(list.back().value, file, flags.items[i].line);
  }
  return list;
}

void apply_overrides(const std::vector<Override>& overrides, ConfigNode& map, const std::string& path, Draft& draft) {
  for (const Override& each : overrides) {
    const ConfigNode* const before = find_path(map, each.key);
    if (before == nullptr && each.is_removal) {
      throw InputError(fmt::format("{}~{}: {} has no such key", place(each.value.file, each.value.line),
                                   printable(each.key), printable(path, 300)));
    }
    if (before != nullptr && !before->is_null() && before->file.empty()) {
      draft.ignored.push_back({.file = path,
                               .line = before->line,
                               .key = each.key,
                               .value = shown(*before),
                               .says = each.is_removal ? "the command line takes it away"
                                                       : fmt::format("the command line says {}", shown(each.value))});
    }
    if (each.is_removal) {
      remove_path(map, each.key);
    } else {
      put_path(map, each.key, each.value);
    }
  }
}

}  // namespace vramfit
