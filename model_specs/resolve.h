// Turns MODEL as typed into its description: a path, a catalog name, a cached model, or one on the hub.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model_specs/hub/options.h"
#include "model_specs/spec.h"

namespace vramfit {

/// Names that need no files. `find` returns nothing for an unknown name; `suggest` returns "; did you mean ..." or "".
struct CatalogLookup {
  std::function<std::optional<ModelSpec>(const std::string&)> find;
  std::function<std::string(const std::string&)> suggest;
};

struct ResolveOptions {
  Environment environment = process_environment;
  CatalogLookup catalog;
  std::vector<std::string>* notes = nullptr;  // receives one line per problem that was worked around
  /// Changes what the environment says; for tests, whose servers answer slowly or not at all.
  std::function<void(HubOptions&)> adjust_hub;
};

/// In this order: a directory, config.json or .safetensors file; the catalog; huggingface_hub's cache; our own cache
/// when it is younger than a day; the hub, and our own cache whatever its age when the hub can't be reached. `name` is
/// `text`, `source` says where the description came from. A model whose family is unknown gets a description that holds
/// its tensors only (ModelSpec::tensors), from the headers of its safetensors files. Throws ModelError that says what
/// to do.
ModelSpec resolve_model(const std::string& text, const ResolveOptions& options);

}  // namespace vramfit
