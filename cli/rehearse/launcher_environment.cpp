#include "cli/rehearse/launcher_environment.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace vramfit {
namespace {

using Numbers = std::vector<std::pair<const char*, std::int64_t>>;

EnvironmentChanges as_text(const Numbers& numbers) {
  EnvironmentChanges changes;
  for (const auto& [name, number] : numbers) changes.emplace_back(name, fmt::to_string(number));
  return changes;
}

/// srun(1), "output environment variables". All nodes are this machine.
EnvironmentChanges slurm_environment(const LaunchedRank& rank) {
  constexpr std::int64_t kJob = 1;
  EnvironmentChanges changes = as_text({{"SLURM_PROCID", rank.rank},
                                        {"SLURM_LOCALID", rank.local},
                                        {"SLURM_NODEID", rank.node},
                                        {"SLURM_NTASKS", rank.ranks},
                                        {"SLURM_NPROCS", rank.ranks},
                                        {"SLURM_NNODES", rank.nodes},
                                        {"SLURM_JOB_NUM_NODES", rank.nodes},
                                        {"SLURM_STEP_NUM_TASKS", rank.ranks},
                                        {"SLURM_STEP_NUM_NODES", rank.nodes},
                                        {"SLURM_JOB_ID", kJob},
                                        {"SLURM_JOBID", kJob},
                                        {"SLURM_STEP_ID", 0},
                                        {"SLURM_NTASKS_PER_NODE", rank.per_node},
                                        {"SLURM_TASK_PID", ::getpid()}});
  const std::string tasks =
      rank.nodes == 1 ? fmt::to_string(rank.per_node) : fmt::format("{}(x{})", rank.per_node, rank.nodes);
  for (const char* name : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"}) changes.emplace_back(name, tasks);
  std::string nodes = "localhost";
  for (std::int64_t node = 1; node < rank.nodes; ++node) nodes += ",localhost";
  for (const char* name : {"SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"}) {
    changes.emplace_back(name, nodes);
  }
  changes.emplace_back("SLURMD_NODENAME", "localhost");
  changes.emplace_back("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1");
  return changes;
}

}  // namespace

EnvironmentChanges launcher_environment(LauncherKind kind, const LaunchedRank& rank) {
  switch (kind) {
    case LauncherKind::open_mpi:  // mpirun(1), and seen with Open MPI 4.1.4
      return as_text({{"OMPI_COMM_WORLD_RANK", rank.rank},
                      {"OMPI_COMM_WORLD_SIZE", rank.ranks},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", rank.local},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", rank.per_node},
                      {"OMPI_COMM_WORLD_NODE_RANK", rank.local},
                      {"OMPI_UNIVERSE_SIZE", rank.ranks},
                      {"OMPI_APP_CTX_NUM_PROCS", rank.ranks}});
    case LauncherKind::mpich:  // seen with MPICH 4.0.2
      return as_text({{"PMI_RANK", rank.rank},
                      {"PMI_SIZE", rank.ranks},
                      {"MPI_LOCALRANKID", rank.local},
                      {"MPI_LOCALNRANKS", rank.per_node}});
    case LauncherKind::slurm:
      return slurm_environment(rank);
  }
  return {};
}

}  // namespace vramfit
