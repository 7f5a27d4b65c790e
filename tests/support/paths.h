// Where this clone is. In one source alone (tests/main.cpp), so that a compiler cache serves all clones.
#pragma once

#include <string>

namespace vramfit::testing {

/// The root of the repository, and the folder of the programs that were built.
std::string source_dir();
std::string bin_dir();

}  // namespace vramfit::testing
