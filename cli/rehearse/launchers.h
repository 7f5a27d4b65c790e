// Programs that start ranks. One of them can't be played as a rank itself.
#pragma once

#include <string>
#include <vector>

namespace vramfit {

struct Launcher {
  std::string name;                  // "torchrun", "python -m torch.distributed.run"; "" when it is none
  std::vector<std::string> program;  // what it would start, as a command of its own; empty when that can't be told
};

/// Recognises torchrun, accelerate launch, deepspeed, mpirun, srun and their python -m forms.
Launcher recognise_launcher(const std::vector<std::string>& command);

/// Words as a shell reads them, quoted where needed.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace vramfit
