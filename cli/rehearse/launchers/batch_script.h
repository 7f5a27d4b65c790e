// Scripts for Slurm's sbatch: flags in their first comments, and the interpreter that their first line names.
#pragma once

#include <string>
#include <vector>

namespace vramfit {

struct BatchScript {
  std::vector<std::string> interpreter;  // "/bin/bash", and its argument if there is one
  std::vector<std::string> flags;        // of all "#SBATCH" lines before the first command
};

/// Throws InputError if the file can't be read, names no interpreter, or has an #SBATCH line without a flag.
BatchScript read_batch_script(const std::string& path);

/// `scontrol show hostnames [LIST]`, which scripts use to find the first node; `list` is that of the job if there is no
/// other. One name a line.
std::string host_names(const std::string& list);

}  // namespace vramfit
