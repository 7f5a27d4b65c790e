#include "cli/model.h"

#include <filesystem>

#include "cli/files.h"
#include "model_specs/config.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {

ModelSpec read_model(const std::string& model) {
  if (model.empty())
    throw InputError("MODEL: missing; name one, for example meta-llama/Llama-3.1-8B (\"vramfit models\" lists them)");
  std::error_code error;
  if (!std::filesystem::exists(model, error)) throw ModelError(printable(model) + ": no such file");
  ModelSpec spec = parse_config(read_file(model), model);
  spec.name = model;
  return spec;
}

}  // namespace vramfit
