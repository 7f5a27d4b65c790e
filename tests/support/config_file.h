// The small models of tests/models, and configurations written in a test.
#pragma once

#include <string>
#include <vector>

#include "model_specs/spec.h"

namespace vramfit::testing {

/// Names of the runnable families' small models: "llama" for tests/models/llama.json.
const std::vector<std::string>& small_models();

/// The text of tests/models/NAME.json. Throws std::runtime_error when it can't be read.
std::string small_model_text(const std::string& name);

ModelSpec small_model(const std::string& name);

}  // namespace vramfit::testing
