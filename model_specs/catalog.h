// The models that are known without a hub: one JSON file each in catalog/, compiled in. An entry is a config.json with
// `id`, `aliases`, `source` (where its values were read) and `published` (a parameter count and who says so).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model_specs/spec.h"

namespace vramfit {

struct CatalogEntry {
  std::string_view id;       // hub id: "meta-llama/Llama-3.1-8B"
  std::string_view aliases;  // one per line, each followed by a line feed; may be empty
  std::string_view json;     // the whole entry, parsed only when it is asked for
};

/// All entries, in the order of their file names.
std::span<const CatalogEntry> catalog();

/// The entry with this id or alias, ignoring case, or nullptr.
const CatalogEntry* find_in_catalog(std::string_view name);

/// The specification of an entry; its name is the id, its source "catalog: ID".
ModelSpec catalog_spec(const CatalogEntry& entry);

/// "; did you mean \"Qwen/Qwen3-8B\"?" for a name that isn't in the catalog, or "" when none is near.
std::string catalog_suggestion(std::string_view name);

}  // namespace vramfit
