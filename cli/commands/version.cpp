#include <cstdio>

#include <CLI/CLI.hpp>

#include "cli/command_line.h"
#include "cli/commands/commands.h"

namespace vramfit {

void add_version(CLI::App& command, int& exit_code) {
  command.callback([&exit_code] {
    std::puts(version_text().c_str());
    exit_code = 0;
  });
}

}  // namespace vramfit
