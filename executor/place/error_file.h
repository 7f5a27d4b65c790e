// The final error message of a rank.
#pragma once

#include <string>

namespace vramfit {

/// Prints "vramfit-train: LINE" to stderr and, where torchrun asks for it (TORCHELASTIC_ERROR_FILE), leaves the line in
/// that file, so that torchrun's summary shows it instead of an exit code. A file that is there already is left alone.
void report_end(const std::string& line);

}  // namespace vramfit
