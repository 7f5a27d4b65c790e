// A program as text, an instruction a line.
#pragma once

#include <string>

#include "program/program.h"

namespace vramfit::program {

/// Sections with the main list, then each block once. In a block, $0, $1 ... are its slots, which calls bind in this
/// order; labels that begin with '.' follow the name of the segment that is called.
std::string program_text(const Program& program);

}  // namespace vramfit::program
