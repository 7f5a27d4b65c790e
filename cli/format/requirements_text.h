// What a job needs and which cards would hold it, for a person and as JSON (vramfit/requirements@1).
#pragma once

#include <string>

#include "cli/format/terminal.h"
#include "estimator/card_requirements.h"

namespace vramfit {

/// Ends in a newline. `model` is how the model was named, for the command that comes next.
std::string requirements_text(const CardRequirements& requirements, const std::string& model, const Terminal& terminal);

std::string requirements_to_json(const CardRequirements& requirements);

}  // namespace vramfit
