// Where the executor, a program of its own, is found.
#pragma once

#include <string>

namespace vramfit {

/// The path of vramfit-train beside this program, or "" when it isn't there or can't be executed.
std::string find_executor();

}  // namespace vramfit
