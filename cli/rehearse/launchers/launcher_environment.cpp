#include "cli/rehearse/launchers/launcher_environment.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>
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

constexpr std::int64_t kJob = 1;

/// "localhost,localhost": all nodes are this machine.
std::string node_list(const LaunchedRank& rank) {
  std::string nodes = "localhost";
  for (std::int64_t node = 1; node < rank.nodes; ++node) nodes += ",localhost";
  return nodes;
}

/// "8(x2)"
std::string tasks_by_node(const LaunchedRank& rank) {
  return rank.nodes == 1 ? fmt::to_string(rank.per_node) : fmt::format("{}(x{})", rank.per_node, rank.nodes);
}

/// Of srun's tasks and of sbatch's script.
EnvironmentChanges job_environment(const LaunchedRank& rank) {
  EnvironmentChanges changes = as_text({{"SLURM_NNODES", rank.nodes},
                                        {"SLURM_JOB_NUM_NODES", rank.nodes},
                                        {"SLURM_JOB_ID", kJob},
                                        {"SLURM_JOBID", kJob},
                                        {"SLURM_TASK_PID", ::getpid()}});
  for (const char* name : {"SLURM_NODELIST", "SLURM_JOB_NODELIST"}) changes.emplace_back(name, node_list(rank));
  changes.emplace_back("SLURM_TASKS_PER_NODE", tasks_by_node(rank));
  changes.emplace_back("SLURMD_NODENAME", "localhost");
  return changes;
}

void add(EnvironmentChanges& changes, const EnvironmentChanges& more) {
  changes.insert(changes.end(), more.begin(), more.end());
}

/// srun(1), "output environment variables".
EnvironmentChanges slurm_environment(const LaunchedRank& rank) {
  EnvironmentChanges changes = job_environment(rank);
  add(changes, as_text({{"SLURM_PROCID", rank.rank},
                        {"SLURM_LOCALID", rank.local},
                        {"SLURM_NODEID", rank.node},
                        {"SLURM_NTASKS", rank.ranks},
                        {"SLURM_NPROCS", rank.ranks},
                        {"SLURM_STEP_NUM_TASKS", rank.ranks},
                        {"SLURM_STEP_NUM_NODES", rank.nodes},
                        {"SLURM_STEP_ID", 0},
                        {"SLURM_NTASKS_PER_NODE", rank.per_node}}));
  add(changes, {{"SLURM_STEP_TASKS_PER_NODE", tasks_by_node(rank)},
                {"SLURM_STEP_NODELIST", node_list(rank)},
                {"SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"}});
  return changes;
}

/// sbatch(1), "output environment variables": what a script reads before its srun. What is there only if sbatch was
/// told so, its flags set.
EnvironmentChanges batch_environment(const LaunchedRank& rank) {
  EnvironmentChanges changes = job_environment(rank);
  add(changes, as_text({{"SLURM_PROCID", 0}, {"SLURM_LOCALID", 0}, {"SLURM_NODEID", 0}, {"SLURM_GTIDS", 0}}));
  add(changes, {{"SLURM_CLUSTER_NAME", "vramfit"}, {"SLURM_SUBMIT_HOST", "localhost"}});
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  if (!error) changes.emplace_back("SLURM_SUBMIT_DIR", here);
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
    case LauncherKind::slurm_batch:
      return batch_environment(rank);
  }
  return {};
}

}  // namespace vramfit
