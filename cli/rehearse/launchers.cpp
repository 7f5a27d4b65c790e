#include "cli/rehearse/launchers.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace vramfit {
namespace {

// `second` is the word that must follow, if any: "accelerate config" starts no ranks.
struct Row {
  std::string_view program, second;
};
constexpr std::array kPrograms{
    Row{"torchrun", ""},      Row{"accelerate", "launch"}, Row{"accelerate-launch", ""},
    Row{"deepspeed", ""},     Row{"mpirun", ""},           Row{"mpiexec", ""},
    Row{"mpiexec.hydra", ""}, Row{"orterun", ""},          Row{"prterun", ""},
    Row{"srun", ""},          Row{"horovodrun", ""},       Row{"composer", ""},
    Row{"fabric", "run"},     Row{"colossalai", "run"},
};
constexpr std::array<std::string_view, 8> kModules{
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher.api",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
    "composer.cli.launcher",
};

using Words = std::vector<std::string>;

bool is_python(const std::string& word) {
  return std::filesystem::path(word).filename().string().starts_with("python");
}

/// The first script or module behind the launcher's own flags, with its arguments: what one rank would run.
Words program_behind(const Words& words, std::size_t from, const std::string& python) {
  const auto first = words.begin() + static_cast<std::ptrdiff_t>(from);
  for (auto word = first; word != words.end(); ++word) {
    if (is_python(*word)) return {word, words.end()};
    const bool module = (*word == "-m" || *word == "--module") && word + 1 != words.end();
    if (!module && !word->ends_with(".py")) continue;
    Words program{python};
    if (module) program.emplace_back("-m");
    program.insert(program.end(), module ? word + 1 : word, words.end());
    return program;
  }
  return {};
}

}  // namespace

Launcher recognise_launcher(const std::vector<std::string>& command) {
  if (command.empty()) return {};
  const std::string name = std::filesystem::path(command[0]).filename().string();
  for (const Row& row : kPrograms) {
    if (name != row.program) continue;
    if (row.second.empty()) return {name, program_behind(command, 1, "python")};
    if (command.size() > 1 && command[1] == row.second) {
      return {name + " " + command[1], program_behind(command, 2, "python")};
    }
  }
  if (!is_python(command[0])) return {};
  for (std::size_t i = 1; i < command.size() && command[i].starts_with("-"); ++i) {
    if (command[i] != "-m" || i + 1 == command.size()) continue;
    const std::string& module = command[i + 1];
    if (std::ranges::find(kModules, module) == kModules.end()) return {};
    return {name + " -m " + module, program_behind(command, i + 2, command[0])};
  }
  return {};
}

std::string shell_words(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%_-+=:,./";
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

}  // namespace vramfit
