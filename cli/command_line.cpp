#include "cli/command_line.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/commands/commands.h"
#include "model_specs/error.h"
#include "model_specs/suggest.h"

namespace vramfit {
namespace {

constexpr std::array kCommands{
    Command{"estimate", "What a training job needs in memory, before it runs", add_estimate},
    Command{"plan", "The fastest way to make a job fit, and why", add_plan},
    Command{"run", "Execute a plan, or a model with the flags of its job", add_run},
    Command{"rehearse", "Any PyTorch or CUDA program on GPUs that aren't there", add_rehearse, true},
    Command{"compare", "Predicted beside measured, phase by phase", add_compare},
    Command{"models", "List the models that are built in, or show one", add_models},
    Command{"gpus", "List the cards that are known, or show one", add_gpus},
    Command{"doctor", "What this machine has and lacks", add_doctor},
    Command{"completion", "Completion script for bash, zsh or fish", add_completion},
    Command{"version", "Print the version", add_version},
};

// Every long flag of the commands that were being parsed, and the commands themselves.
std::vector<std::string> known_words(const CLI::App& app) {
  std::vector<std::string> words;
  const auto parsed = app.get_subcommands();
  const CLI::App& innermost = parsed.empty() ? app : *parsed.front();
  for (const CLI::Option* option : innermost.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  for (const CLI::App* command : innermost.get_subcommands([](const CLI::App*) { return true; })) {
    words.push_back(command->get_name());
  }
  return words;
}

std::string unexpected_word(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::App* inner : command->get_subcommands()) {
      if (inner->remaining_size() > 0) return inner->remaining().front();
    }
    if (command->remaining_size() > 0) return command->remaining().front();
  }
  return app.remaining_size() > 0 ? app.remaining().front() : "";
}

[[noreturn]] void report(const CLI::App& app, const CLI::ParseError& error) {
  const auto parsed = app.get_subcommands();
  const std::string help =
      fmt::format("; see \"vramfit {}--help\"", parsed.empty() ? "" : parsed.front()->get_name() + " ");
  const std::string word = unexpected_word(app);
  if (!word.empty()) {
    const std::string name = word.substr(0, word.find('='));
    const bool flag = word.starts_with("-");
    const bool command = parsed.empty() && !flag;
    const std::string nearest = nearest_name(name, known_words(app));
    throw InputError(fmt::format("{}: unknown {}{}{}", printable(name),
                                 command ? "command"
                                 : flag  ? "flag"
                                         : "argument",
                                 nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest),
                                 nearest.empty() ? help : ""));
  }
  throw InputError(printable(error.what()) + help);
}

/// The arguments in CLI11's order, last first, with words that are not ours marked.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto* command = std::ranges::find(kCommands, argc > 1 ? argv[1] : "", &Command::name);
  if (command != kCommands.end() && command->takes_words) {
    const auto dashes = std::ranges::find(arguments, "--");
    if (dashes != arguments.end()) {
      std::for_each(dashes + 1, arguments.end(), [](std::string& word) { word.insert(0, 1, kWordMark); });
    }
  }
  std::ranges::reverse(arguments);
  return arguments;
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

std::string version_text() { return "vramfit " VRAMFIT_VERSION; }

std::unique_ptr<CLI::App> make_command_line(int& exit_code) {
  auto app =
      std::make_unique<CLI::App>("Estimates, plans, runs and compares the GPU memory of training jobs", "vramfit");
  app->set_version_flag("--version", version_text);
  app->require_subcommand(0, 1);
  for (const Command& command : kCommands) {
    CLI::App* added = app->add_subcommand(std::string(command.name), std::string(command.summary));
    command.add(*added, exit_code);
  }
  return app;
}

int run_command_line(int argc, char** argv) {
  int exit_code = 0;
  const std::unique_ptr<CLI::App> app = make_command_line(exit_code);
  try {
    app->parse(arguments_of(argc, argv));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app->exit(error);
    report(*app, error);
  }
  if (app->get_subcommands().empty()) {
    std::fputs(app->help().c_str(), stdout);
    return static_cast<int>(ExitCode::usage);
  }
  return exit_code;
}

}  // namespace vramfit
