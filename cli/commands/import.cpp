#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/command_line.h"
#include "cli/commands/commands.h"
#include "cli/configs/import.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/format/import_text.h"

namespace vramfit {
namespace {

struct ImportFlags {
  std::vector<std::string> files;
  bool json = false;
};

/// What comes after two dashes is a command line.
int run_import(const ImportFlags& flags) {
  std::vector<std::string> files, words;
  for (const std::string& file : flags.files) {
    if (file.starts_with(kWordMark)) {
      words.push_back(file.substr(1));
    } else {
      files.push_back(file);
    }
  }
  const ImportedJob job = import_configs(files, words);
  write_file("-", flags.json ? import_to_json(job) : import_text(job, detect_terminal()));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_import(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ImportFlags>();
  command
      .add_option(
          "FILE", flags->files,
          "A YAML, TOML or JSON file, or a script with the command that starts the training; several files that belong "
          "together, such as accelerate's and the Trainer's, may be given. After two dashes: the command itself")
      ->type_name("...");
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/import.schema.json)")
      ->group(kOutputFlags);
  command.callback([flags, &exit_code] { exit_code = run_import(*flags); });
}

}  // namespace vramfit
