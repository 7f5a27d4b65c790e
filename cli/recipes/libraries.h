// Which libraries a Python has, as a recipe needs them.
#pragma once

#include <string>

#include "cli/recipes/recipe.h"

namespace vramfit {

/// The path of the interpreter: `wanted`, or if it is empty the `python` or `python3` in PATH. Throws InputError.
std::string find_python(const std::string& wanted);

struct Libraries {
  std::string text;      // "torch 2.11.0, trl 1.16.0": of the recipe's
  std::string identity;  // a hash of the names and versions of all that are installed
};

/// What `python` has, read from metadata without importing anything. Throws FaultError naming those of the recipe's
/// libraries that are missing, too old or too new, with the line for pip that installs others.
Libraries check_libraries(const Recipe& recipe, const std::string& python);

}  // namespace vramfit
