// Configurations of other tools as a job of ours.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/configs/draft.h"
#include "cli/configs/finish.h"
#include "job/run/rehearsal_command.h"

namespace vramfit {

struct ImportedJob {
  struct File {
    std::string path, what;  // "train.yaml", "accelerate's configuration"
  };
  std::vector<File> files;
  std::string model;        // "" where no file names it
  std::string stack;        // of stacks() (job/stacks/stacks.h)
  TrainingProgram program;  // that trains with the files as they are; empty where a script of the user's does
  GpuCount gpus;
  bool is_ddp_on_several = false;  // no file says how many GPUs there are, and several would be DDP
  std::string open_length;  // "sft.yaml:3: max_length", which leaves rows without a limit; "" where they have one
  bool clips = true;        // false: a file says that gradients aren't clipped, or its tool doesn't clip by itself
  std::vector<std::pair<std::string, std::string>> fields;  // of the job that are set, in the table's order
  std::vector<Finding> understood, assumed, unmodelled, ignored;
};

/// Reads files of the tools in cli/configs/tools.def, and those that they name; `words` is a command line that starts a
/// training, or empty. `library` is the stack that files of TRL's arguments are for where they don't say so; `model`
/// is asked about in place of the one that they name. Throws InputError naming file and line for what can't be read,
/// for a file of no known tool, and for two files that contradict each other.
ImportedJob import_configs(const std::vector<std::string>& paths, const std::vector<std::string>& words = {},
                           const std::string& library = "", const std::string& model = "");

/// Whether the file is one of another tool, as opposed to a job file of ours. Throws InputError if it can't be read.
bool is_foreign_config(const std::string& path);

/// "8xCARD" with `card`; "" where the files don't say how many.
std::string cluster_text(const GpuCount& gpus, const std::string& card);

/// "vramfit estimate MODEL --gpus 8xCARD --stack trl --seq-len 2048 ...". What no file says is in capital letters:
/// MODEL, CLUSTER, CARD, and LONGEST for the length of rows that have no limit.
std::string command_of(const ImportedJob& job);

}  // namespace vramfit
