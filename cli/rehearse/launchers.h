// Programs that start ranks. A launcher can't itself be run as a single rank.
#pragma once

#include <string>
#include <vector>

namespace vramfit {

struct Launcher {
  std::string name;                  // "torchrun", "python -m torch.distributed.run"; "" when it is none
  std::vector<std::string> program;  // what it would start, as a separate command; empty if unknown
};

/// Recognises torchrun, accelerate launch, deepspeed, mpirun, srun and their python -m forms.
Launcher recognise_launcher(const std::vector<std::string>& command);

/// Words as a shell parses them, quoted where necessary.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace vramfit
