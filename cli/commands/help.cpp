#include "cli/flags/help.h"

#include <memory>

#include <CLI/CLI.hpp>

#include "cli/commands/commands.h"
#include "cli/files.h"

namespace vramfit {

void add_help(CLI::App& command, int& exit_code) {
  const auto name = std::make_shared<std::string>();
  command.add_option("COMMAND", *name, "The command to show help for; without it, all commands are listed");
  command.callback([name, &exit_code] {
    write_file("-", help_of(*name));
    exit_code = 0;
  });
}

}  // namespace vramfit
