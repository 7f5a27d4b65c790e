#include "cli/configs/key_table.h"

#include <algorithm>

#include <fmt/format.h>

namespace vramfit {
namespace {

/// Whether `key` is among "a b c_*".
bool is_among(std::string_view key, std::string_view keys) {
  while (!keys.empty()) {
    const std::size_t space = std::min(keys.find(' '), keys.size());
    std::string_view name = keys.substr(0, space);
    keys.remove_prefix(std::min(space + 1, keys.size()));
    if (name == key) return true;
    if (!name.ends_with('*')) continue;
    name.remove_suffix(1);
    if (!name.empty() && key.starts_with(name)) return true;
  }
  return false;
}

std::string_view without_prefix(std::string_view key, const KeyTable& table) {
  if (key.size() > table.prefix.size() && key.starts_with(table.prefix)) key.remove_prefix(table.prefix.size());
  return key;
}

bool is_known(std::string_view key, const KeyTable& table) {
  return std::ranges::find(table.read, key, &KeyRow::key) != table.read.end() ||
         std::ranges::any_of(table.unmodelled, [&](const UnmodelledKeys& row) { return is_among(key, row.keys); }) ||
         std::ranges::any_of(table.ignored, [&](const IgnoredKeys& row) { return is_among(key, row.keys); });
}

bool reads_null(std::string_view key, const KeyTable& table) {
  const auto row = std::ranges::find(table.read, key, &KeyRow::key);
  return row != table.read.end() && row->reads_null;
}

void read_key(std::string_view key, const Setting& setting, const KeyTable& table, Draft& draft) {
  if (const auto row = std::ranges::find(table.read, key, &KeyRow::key); row != table.read.end()) {
    row->read(setting, draft);
    return;
  }
  for (const UnmodelledKeys& row : table.unmodelled) {
    if (!is_among(key, row.keys)) continue;
    const bool is_usual = setting.is_off() || (!row.usual.empty() && setting.is(row.usual));
    if (is_usual) {
      draft.ignore(setting, "off, or what is usual");
    } else {
      draft.not_modelled(setting, row.why);
    }
    return;
  }
  for (const IgnoredKeys& row : table.ignored) {
    if (!is_among(key, row.keys)) continue;
    draft.ignore(setting, row.why);
    return;
  }
  draft.ignore(setting, fmt::format("vramfit knows of no such key of {}", table.tool));
}

}  // namespace

void read_keys(const ConfigNode& map, const std::string& file, const std::string& path, const KeyTable& table,
               Draft& draft) {
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    const std::string_view name = without_prefix(map.keys[i], table);
    if (map.items[i].is_null() && !reads_null(name, table)) continue;
    const std::string key = path.empty() ? map.keys[i] : fmt::format("{}.{}", path, map.keys[i]);
    const std::string& place = map.items[i].file.empty() ? file : map.items[i].file;
    read_key(name, {place, key, &map.items[i]}, table, draft);
  }
}

void read_keys(const Setting& setting, const KeyTable& table, Draft& draft) {
  if (!setting.node->is_map()) setting.fail(fmt::format("{} is not a map", shown(*setting.node)));
  read_keys(*setting.node, setting.file, setting.key, table, draft);
}

std::size_t known_keys(const ConfigNode& map, const KeyTable& table) {
  return static_cast<std::size_t>(
      std::ranges::count_if(map.keys, [&](const auto& key) { return is_known(key, table); }));
}

}  // namespace vramfit
