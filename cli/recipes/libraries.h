// Which libraries a Python has, as a recipe needs them.
#pragma once

#include <string>

#include "cli/recipes/recipe.h"

namespace vramfit {

/// The path of the interpreter: `wanted`, or if it is empty the `python` or `python3` in PATH. Throws InputError.
std::string find_python(const std::string& wanted);

/// "torch 2.11.0, trl 1.16.0": what `python` has of the recipe's libraries, read from their metadata without importing
/// them. Throws FaultError naming those that are missing, too old or too new, with the line for pip that installs
/// others.
std::string check_libraries(const Recipe& recipe, const std::string& python);

}  // namespace vramfit
