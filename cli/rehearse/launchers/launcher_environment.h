// The variables by which a program started by MPI's or Slurm's launcher knows which rank it is.
#pragma once

#include <cstdint>

#include "cli/launch/environment.h"

namespace vramfit {

enum class LauncherKind { open_mpi, mpich, slurm, slurm_batch };

/// Where a rank is among the others. `local` is its number on its node, which has `per_node` ranks.
struct LaunchedRank {
  std::int64_t rank = 0, ranks = 1, local = 0, per_node = 1, node = 0, nodes = 1;
};

/// The variables that the launcher gives this rank; those of sbatch are the script's, which runs once, on the first
/// node.
EnvironmentChanges launcher_environment(LauncherKind kind, const LaunchedRank& rank);

}  // namespace vramfit
