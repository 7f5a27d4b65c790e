// Turns MODEL as typed into its description.
#pragma once

#include <string>

#include "model_specs/spec.h"

namespace vramfit {

/// Throws InputError when MODEL is missing, ModelError when it can't be found or read.
ModelSpec read_model(const std::string& model);

}  // namespace vramfit
