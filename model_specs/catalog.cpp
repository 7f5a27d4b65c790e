#include "model_specs/catalog.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include <fmt/format.h>

#include "base/json/json_value.h"
#include "base/text/suggest.h"
#include "model_specs/catalog_data.h"
#include "model_specs/config.h"

namespace vramfit {
namespace {

bool same(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

// Calls visit(name) for the id and each alias until it returns true.
template <typename Visit>
bool any_name(const CatalogEntry& entry, Visit visit) {
  if (visit(entry.id)) return true;
  for (std::string_view rest = entry.aliases; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    if (visit(rest.substr(0, end))) return true;
    rest.remove_prefix(end + 1);
  }
  return false;
}

}  // namespace

std::span<const CatalogEntry> catalog() { return catalog_data(); }

const CatalogEntry* find_in_catalog(std::string_view name) {
  for (const CatalogEntry& entry : catalog()) {
    if (any_name(entry, [&](std::string_view known) { return same(known, name); })) return &entry;
  }
  return nullptr;
}

ModelSpec catalog_spec(const CatalogEntry& entry) {
  ModelSpec spec = parse_config(entry.json, fmt::format("catalog: {}", entry.id));
  spec.name = entry.id;
  const JsonValue document = parse_json(entry.json, spec.name);
  JsonObject json(document, spec.name);
  if (json.has("note")) spec.note = json.text("note");
  return spec;
}

std::string catalog_suggestion(std::string_view name) {
  std::vector<std::string> known;
  for (const CatalogEntry& entry : catalog()) {
    any_name(entry, [&](std::string_view other) {
      known.emplace_back(other);
      return false;
    });
  }
  return did_you_mean(name, known);
}

}  // namespace vramfit
