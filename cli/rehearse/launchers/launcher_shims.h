// With --ranks R, the launchers of MPI and Slurm are vramfit itself, found first in PATH: it reads the launcher's flags
// and becomes rank R's program, also inside shell scripts, and where the launcher is not installed.
#pragma once

#include <string>

namespace vramfit {

/// Whether a command of this name (its path's last part) is such a launcher.
bool has_shim(const std::string& command);

/// Makes a folder with a link of each launcher's name in `session`; its path. Throws FaultError.
std::string make_launcher_shims(const std::string& session);

/// The link that starts a command once for each rank of all nodes (`become_rank_of_launcher`), with the variables that
/// `rank_environment` gives each.
inline constexpr const char* kStartsAllRanks = "vramfit-ranks";

/// Whether this process was started as a launcher in a session that plays one rank.
bool is_started_as_launcher(const char* name);

/// Becomes the rank, or starts all and exits with the code of the first that fails. Throws InputError if flags aren't
/// known or ask for other numbers of ranks than --gpus has.
[[noreturn]] void become_rank_of_launcher(int argc, char** argv);

}  // namespace vramfit
