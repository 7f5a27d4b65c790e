// Files that single processes leave in the session folder and that a person asked for.
#pragma once

#include <string>
#include <vector>

#include "cli/rehearse/records.h"

namespace vramfit {

/// Throws InputError naming `flag` when no file could be made at `path`; before an hour's rehearsal, not after it.
void check_can_write(const std::string& flag, const std::string& path);

/// Copies FOLDER/KIND.PID.* to `target`: one process's file gets that name, of several each gets ".rankR", or ".PID"
/// where a process has no rank of its own, before its extension. Returns the names. Throws FaultError.
std::vector<std::string> deliver(const std::string& folder, const std::string& kind,
                                 const std::vector<ProcessRecord>& processes, const std::string& target);

}  // namespace vramfit
