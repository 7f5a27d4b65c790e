// Finds the executor, which is a separate program.
#pragma once

#include <string>

namespace vramfit {

/// The path of vramfit-train next to this program, or in the Python package vramfit_train next to the package that this
/// program is in; "" if it is missing or can't be executed.
std::string find_executor();

/// Where it comes from, for messages: "build it with ...".
std::string how_to_get_executor();

}  // namespace vramfit
