#include "job/run/rehearsal_command.h"

#include <fmt/format.h>

namespace vramfit {

std::string rehearsal_of(const Cluster& cluster) {
  if (cluster.nodes > 1) return fmt::format("vramfit rehearse --gpus {} --ranks 0 -- python train.py", cluster.text);
  const std::string launcher =
      cluster.cards() == 1 ? "python" : fmt::format("torchrun --nproc-per-node {}", cluster.cards());
  return fmt::format("vramfit rehearse --gpus {} -- {} train.py", cluster.text, launcher);
}

}  // namespace vramfit
