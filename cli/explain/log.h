// The out-of-memory messages in a log, each with the traceback above it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/explain/code_site.h"
#include "cli/explain/memory_message.h"

namespace vramfit {

struct LoggedFailure {
  std::int64_t line = 0;    // of the file, where the message stands
  std::optional<int> rank;  // if what stands in front of the line says
  MemoryMessage message;
  CodeSite site;  // of the traceback that the message ends; empty without one
};

struct MemoryLog {
  std::vector<LoggedFailure> failures;  // in the file's order, the same of a rank once; at most 64
  std::int64_t more = 0;                // that are left out
};

/// Reads a log of any size, a line at a time. Throws InputError naming the file, also if there is no message in it.
MemoryLog read_memory_log(const std::string& path);

}  // namespace vramfit
