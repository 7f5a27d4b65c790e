#include "job/run/rehearsal_command.h"

#include <fmt/format.h>

namespace vramfit {

std::string rehearsal_of(const Cluster& cluster) {
  const std::string launcher =
      cluster.cards() == 1 ? "python" : fmt::format("torchrun --nproc-per-node {}", cluster.cards());
  return rehearsal_of(cluster, {.all = launcher + " train.py", .rank = "python train.py"});
}

std::string rehearsal_of(const Cluster& cluster, const TrainingProgram& program) {
  if (cluster.nodes > 1) return fmt::format("vramfit rehearse --gpus {} --ranks 0 -- {}", cluster.text, program.rank);
  return fmt::format("vramfit rehearse --gpus {} -- {}", cluster.text, program.all);
}

}  // namespace vramfit
