// Whether a collective's bytes are those of its ranks' parts and of the buffers that it names.
#pragma once

#include <optional>
#include <string>

#include "program/readers/expand.h"

namespace vramfit::program {

/// What is wrong, if anything is.
std::optional<std::string> size_fault(const Program& program, const Start& start, const Place& place);

}  // namespace vramfit::program
