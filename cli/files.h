// Whole files in and out.
#pragma once

#include <string>
#include <string_view>

#include "base/files/result_file.h"

namespace vramfit {

/// The text of a regular file of at most 64 MiB, no further than the size it has when opened; throws InputError naming
/// it.
std::string read_file(const std::string& path);

/// Before long work: throws FaultError when nothing can be written to `path`, which `flag` gave; "" is no path.
void check_output(const std::string& flag, const std::string& path);

/// A file that belongs to a JSON file: "run.json", "tuned.plan" -> "run.tuned.plan.json".
std::string file_beside(const std::string& path, std::string_view part);

}  // namespace vramfit
