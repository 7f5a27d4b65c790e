// Programs that start ranks in a way of their own, so that they can't be played as a single rank.
#pragma once

#include <string>
#include <vector>

namespace vramfit {

struct Launcher {
  std::string name;                  // "composer", "python -m composer.cli.launcher"; "" when it is none
  std::vector<std::string> program;  // what it would start, as a separate command; empty if unknown
};

/// Recognises horovodrun, composer and colossalai, also as python -m. torchrun and all that start ranks as it does,
/// deepspeed, and the launchers of MPI and Slurm are not among them: they become the rank that is played.
Launcher launcher_past_torch(const std::vector<std::string>& command);

}  // namespace vramfit
