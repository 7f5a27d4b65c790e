// What stands before a launch: variables of its environment, and programs that only start another.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/configs/draft.h"
#include "cli/configs/syntax/shell_words.h"

namespace vramfit {

struct LaunchPrefix {
  std::size_t end = 0;                 // where the launch begins
  std::vector<ShellWord> environment;  // NAME=value
  ConfigNode scheduler;                // nodes, ranks and per_node of srun or mpirun
  std::vector<Finding> skipped;        // other words, such as nohup
};

/// The part of a path behind its folders.
inline std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

/// NAME=value, or section.name=value.
bool is_assignment(const std::string& word);

/// Up to the first word that `begins_launch`; no further than variables if none does.
LaunchPrefix read_launch_prefix(const std::vector<ShellWord>& words, const std::string& file,
                                const std::function<bool(std::size_t)>& begins_launch);

/// Whether the word is a program that starts what its other words say: env, nohup, srun, "uv run".
bool starts_another(const std::string& word);

}  // namespace vramfit
