// Finds the executor, which is a separate program.
#pragma once

#include <string>

namespace vramfit {

/// The path of vramfit-train next to this program, or "" if it is missing or can't be executed.
std::string find_executor();

}  // namespace vramfit
