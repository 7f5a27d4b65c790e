#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/files.h"

namespace vramfit {

void add_version(CLI::App& command, int& exit_code) {
  command.callback([&exit_code] {
    write_file("-", version_text() + "\n");
    exit_code = 0;
  });
}

}  // namespace vramfit
