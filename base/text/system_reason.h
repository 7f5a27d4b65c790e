#pragma once

#include <string>
#include <system_error>

namespace vramfit {

/// What the error number of a system call means: "No such file or directory".
inline std::string system_reason(int error) { return std::generic_category().message(error); }

}  // namespace vramfit
