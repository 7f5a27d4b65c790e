// Starts the ranks of one machine and waits until all have ended, however they end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/environment.h"

namespace vramfit {

struct LaunchOptions {
  std::string program;                 // path of vramfit-train
  std::vector<std::string> arguments;  // without the program
  int ranks = 1;
  int ranks_per_node = 0;            // 0: all on one
  std::optional<int> played{};       // start this rank alone
  EnvironmentChanges environment{};  // for each rank, besides its place
  int threads = 0;                   // compute threads of a rank; 0: OMP_NUM_THREADS if set, else cores / ranks
};

/// Runs the ranks with RANK, WORLD_SIZE, LOCAL_RANK and VRAMFIT_STORE_FILE set. They meet in that file, in a folder of
/// $TMPDIR that only this user can enter, and talk over loopback. Rank 0's progress goes to stderr. When a rank fails
/// or a signal comes, all are ended within 3 seconds (SIGTERM, then SIGKILL) and none is left, not even if this process
/// is killed. A rank that runs alone is told its place in the world, but no other rank exists.
///
/// Returns 0; 128 + n after signal n to this process or to the rank that ended first; else the exit code of the rank
/// that failed first, having printed one line that names the rank and why. Throws FaultError when the ranks can't be
/// started.
int launch_ranks(const LaunchOptions& options);

}  // namespace vramfit
