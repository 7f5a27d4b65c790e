// The keys of a tool's configuration as a table: what each sets, or why it is ignored.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/configs/draft.h"

namespace vramfit {

/// A key that is read.
struct KeyRow {
  std::string_view key;
  void (*read)(const Setting& setting, Draft& draft);
  bool reads_null = false;  // others are as if they weren't there
};

/// Keys that change nothing that is estimated, with the reason; separated by spaces. One that ends in '*' stands for
/// all that begin so.
struct IgnoredKeys {
  std::string_view why, keys;
};

/// Keys that change memory in a way that isn't modelled, unless their value is off (Setting::is_off) or `usual`.
struct UnmodelledKeys {
  std::string_view why, keys, usual = "";
};

struct KeyTable {
  std::string_view tool;  // "accelerate": for what is said of unknown keys
  std::span<const KeyRow> read;
  std::span<const UnmodelledKeys> unmodelled;
  std::span<const IgnoredKeys> ignored;
  std::string_view prefix = "";  // that keys may have before the table's names
};

/// Reads every key of `map`; null values are as if they weren't there. `path` is that of the map itself, "" for the
/// whole file. A key that no row has is ignored, and said to be unknown.
void read_keys(const ConfigNode& map, const std::string& file, const std::string& path, const KeyTable& table,
               Draft& draft);

/// How many of the map's keys the table has.
std::size_t known_keys(const ConfigNode& map, const KeyTable& table);

/// Reads a map that is a value.
void read_keys(const Setting& setting, const KeyTable& table, Draft& draft);

}  // namespace vramfit
