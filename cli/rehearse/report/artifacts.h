// Files that processes leave in the session folder and that the user asked for.
#pragma once

#include <string>
#include <vector>

#include "cli/rehearse/report/records.h"

namespace vramfit {

/// Throws InputError naming `flag` if no file can be created at `path`; called before a long rehearsal, not after it.
void check_can_write(const std::string& flag, const std::string& path);

/// Copies FOLDER/KIND.PID.* to `target`. The file of a single process gets that name; those of several get ".rankR"
/// before the extension, or ".PID" if a process has no unique rank. Returns the names. Throws FaultError.
std::vector<std::string> deliver(const std::string& folder, const std::string& kind,
                                 const std::vector<ProcessRecord>& processes, const std::string& target);

}  // namespace vramfit
