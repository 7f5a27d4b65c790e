// A command line that trains: launcher, script and arguments, as configurations.
#pragma once

#include <string>
#include <vector>

#include "cli/configs/overrides.h"
#include "cli/configs/syntax/shell_words.h"
#include "cli/configs/tools.h"

namespace vramfit {

/// A configuration that was read, with the tool that it is for.
struct ConfigFile {
  std::string path;
  ConfigNode root;
  const ConfigTool* tool = nullptr;
};

struct LaunchLine {
  std::string starter;                  // what starts the processes: "torchrun"; "" where nothing known does
  std::vector<ConfigFile> configs;      // of the launcher and of the program
  std::vector<Finding> references;      // files that are named; the value is the path
  std::vector<Override> overrides;      // batch_size=2
  const ConfigTool* program = nullptr;  // whose files are named, where the program says so
  std::vector<Finding> ignored;         // words that are no flags of a tool
};

/// Whether the words start a training as far as they can be read: a launcher, a library's own program or Python.
bool is_launch_line(const std::vector<ShellWord>& words);

/// The parts of a command line; `file` is where it stands, `environment` what was exported before it. Throws InputError
/// for a configuration that torchtune brings, whose file has to be written first.
LaunchLine read_launch_line(const std::vector<ShellWord>& words, const std::string& file,
                            const std::vector<ShellWord>& environment = {});

}  // namespace vramfit
