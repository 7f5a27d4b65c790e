// Whole files in and out.
#pragma once

#include <string>

namespace vramfit {

/// The text of a regular file of at most 64 MiB; throws InputError naming it.
std::string read_file(const std::string& path);

/// Writes beside `path` and renames, so that nobody sees half a file; "-" is stdout. Throws FaultError.
void write_file(const std::string& path, const std::string& text);

}  // namespace vramfit
