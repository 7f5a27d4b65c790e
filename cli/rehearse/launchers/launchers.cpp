#include "cli/rehearse/launchers/launchers.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

namespace vramfit {
namespace {

// Launchers that nothing here plays (launcher_shims.h, phantom/python/vramfit_rehearsal/launchers.py). `second` is the
// word that must follow, if any.
struct Row {
  std::string_view program, second;
};
constexpr std::array kPrograms{
    Row{"horovodrun", ""},
    Row{"composer", ""},
    Row{"colossalai", "run"},
};
constexpr std::array<std::string_view, 1> kModules{"composer.cli.launcher"};

using Words = std::vector<std::string>;

bool is_python(const std::string& word) {
  return std::filesystem::path(word).filename().string().starts_with("python");
}

/// The first script or module after the launcher's own flags, with its arguments: what one rank would run.
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

/// python -m MODULE, possibly preceded by flags of Python's own.
Launcher launcher_module(const Words& command) {
  const auto flag = std::find_if(command.begin() + 1, command.end(),
                                 [](const std::string& word) { return word == "-m" || !word.starts_with("-"); });
  if (command.end() - flag < 2 || *flag != "-m") return {};
  const std::string& module = *(flag + 1);
  if (std::ranges::find(kModules, module) == kModules.end()) return {};
  const auto behind = static_cast<std::size_t>(flag + 2 - command.begin());
  const std::string name = std::filesystem::path(command[0]).filename().string();
  return {fmt::format("{} -m {}", name, module), program_behind(command, behind, command[0])};
}

}  // namespace

Launcher launcher_past_torch(const std::vector<std::string>& command) {
  if (command.empty()) return {};
  const std::string name = std::filesystem::path(command[0]).filename().string();
  for (const Row& row : kPrograms) {
    if (name != row.program) continue;
    if (row.second.empty()) return {name, program_behind(command, 1, "python")};
    if (command.size() > 1 && command[1] == row.second) {
      return {fmt::format("{} {}", name, command[1]), program_behind(command, 2, "python")};
    }
  }
  return is_python(command[0]) ? launcher_module(command) : Launcher{};
}

}  // namespace vramfit
