#include "cli/model.h"

#include <filesystem>

#include "cli/files.h"
#include "model_specs/catalog.h"
#include "model_specs/config.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {

ModelSpec read_model(const std::string& model) {
  if (model.empty()) {
    throw InputError("MODEL: missing; name one, for example meta-llama/Llama-3.1-8B (\"vramfit models\" lists them)");
  }
  std::error_code error;
  if (std::filesystem::exists(model, error)) {
    ModelSpec spec = parse_config(read_file(model), model);
    spec.name = model;
    return spec;
  }
  if (const CatalogEntry* entry = find_in_catalog(model); entry != nullptr) return catalog_spec(*entry);
  throw ModelError(printable(model) + ": no such file, and not in the catalog" + catalog_suggestion(model));
}

}  // namespace vramfit
