#include "cli/launch/node_commands.h"

#include <fmt/format.h>

#include "base/text/shell_quoted.h"

namespace vramfit {

std::string commands_for_nodes(const Cluster& cluster, const std::string& program,
                               const std::vector<std::string>& arguments) {
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string command = shell_words(words);
  const std::int64_t nodes = cluster.nodes, ranks = cluster.cards_per_node;
  return fmt::format(
      "run starts the ranks of one machine, the plan is for {0}. Start them on each by one of these, FIRST being the "
      "machine of rank 0 (docs/launching.md):\n"
      "  torchrun, on each with its N from 0 to {3}:\n"
      "    torchrun --no-python --nnodes {0} --nproc-per-node {1} --node-rank N --master-addr FIRST --master-port "
      "29500 "
      "{2}\n"
      "  Slurm:\n"
      "    srun --nodes {0} --ntasks-per-node {1} --distribution block --kill-on-bad-exit=1 {2}\n"
      "  Open MPI:\n"
      "    mpirun -np {4} --map-by ppr:{1}:node -x MASTER_ADDR=FIRST -x MASTER_PORT=29500 {2}",
      nodes, ranks, command, nodes - 1, nodes * ranks);
}

}  // namespace vramfit
