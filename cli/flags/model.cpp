#include "cli/flags/model.h"

#include <cstdio>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "model_specs/catalog.h"
#include "model_specs/resolve.h"

namespace vramfit {
namespace {

CatalogLookup compiled_in_catalog() {
  CatalogLookup lookup;
  lookup.find = [](const std::string& name) {
    const CatalogEntry* entry = find_in_catalog(name);
    return entry == nullptr ? std::nullopt : std::optional(catalog_spec(*entry));
  };
  lookup.suggest = [](const std::string& name) { return catalog_suggestion(name); };
  return lookup;
}

}  // namespace

ModelSpec read_model(const std::string& model) {
  if (model.empty())
    throw InputError("MODEL: missing; name one, for example meta-llama/Llama-3.1-8B (\"vramfit models\" lists them)");
  std::vector<std::string> notes;
  ResolveOptions options;
  options.catalog = compiled_in_catalog();
  options.notes = &notes;
  ModelSpec spec = resolve_model(model, options);
  for (const std::string& note : notes) fmt::print(stderr, "vramfit: warning: {}\n", printable(note, 500));
  return spec;
}

}  // namespace vramfit
