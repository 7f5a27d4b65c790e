// The flags of MPI's and Slurm's launchers, as far as one rank's variables follow from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/launch/environment.h"
#include "cli/rehearse/launchers/launcher_environment.h"

namespace vramfit {

/// What a launcher was asked for.
struct LaunchRequest {
  std::vector<std::string> program;                    // with its arguments
  std::optional<std::int64_t> ranks, per_node, nodes;  // as far as the flags say
  EnvironmentChanges environment;                      // that the flags set
  std::string folder;                                  // to start in; "" for this one
  bool is_wrapped = false;                             // of sbatch: the program is a command, not a script
};

/// `words` after the launcher's name. Flags that change nothing for a rank's memory are read over. Throws InputError
/// for a flag that is not known here, for several programs at once, and if there is no program.
LaunchRequest read_launch(LauncherKind kind, std::string_view name, const std::vector<std::string>& words);

}  // namespace vramfit
