#include "cli/rehearse/warm/warm_command.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/launch/environment.h"
#include "cli/rehearse/processes/program_file.h"

namespace vramfit {
namespace {

// They start programs as processes of their own, also as the one rank that is played.
constexpr std::array<std::string_view, 6> kLaunchers{"torch.distributed.run",      "torch.distributed.launch",
                                                     "accelerate.commands.launch", "deepspeed.launcher.runner",
                                                     "deepspeed.launcher.launch",  "lightning.fabric.cli"};
constexpr std::string_view kFlags = "uBOsqbdv";  // of Python, that stand alone
constexpr std::string_view kFlagsWithValue = "WX";

bool is_plain_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word.find_first_not_of(kFlags, 1) == std::string::npos;
}

/// The number of words that are Python and its flags.
std::size_t python_words(const std::vector<std::string>& words) {
  std::size_t at = 1;
  while (at < words.size()) {
    const std::string& word = words[at];
    if (is_plain_flag(word)) {
      at += 1;
    } else if (word.size() > 1 && word[0] == '-' && kFlagsWithValue.find(word[1]) != std::string_view::npos) {
      at += word.size() == 2 ? 2 : 1;
    } else {
      break;
    }
  }
  return std::min(at, words.size());
}

void check_script(const std::string& script) {
  std::error_code error;
  if (std::filesystem::is_regular_file(script, error)) return;
  throw InputError(fmt::format("\"{}\" is no script", printable(script, 80)));
}

}  // namespace

WarmCommand warm_command(const RehearsalRequest& request, const std::vector<std::string>& words) {
  if (!request.played_rank && request.cluster.nodes > 1)
    throw InputError("the ranks of several nodes are separate processes; play one: --ranks R");
  const std::string name = std::filesystem::path(words[0]).filename().string();
  if (!name.starts_with("python")) {
    throw InputError(fmt::format(
        "\"{}\" starts its own processes; it can be done for python SCRIPT and python -m MODULE{}",
        printable(words[0], 80), request.played_rank ? "" : ", as one rank (--ranks R) or as the only one"));
  }
  if (const std::string why = why_out_of_reach(find_program(words[0])); !why.empty())
    throw InputError(fmt::format("{} {}", printable(words[0], 80), why));
  if (!environment_value("PYTHONSAFEPATH").empty())
    throw InputError("PYTHONSAFEPATH is set, and the path of modules begins with the script's folder in a fork");
  const std::size_t at = python_words(words);
  WarmCommand command{{words.begin(), words.begin() + static_cast<std::ptrdiff_t>(at)}, ""};
  if (at == words.size()) throw InputError("Python is given no script");
  if (words[at] == "-m" && at + 1 < words.size()) {
    if (std::ranges::find(kLaunchers, words[at + 1]) == kLaunchers.end()) return command;
    throw InputError(
        fmt::format("{} starts its own processes; start the script itself, as one rank (--ranks R)", words[at + 1]));
  }
  if (words[at].starts_with("-"))
    throw InputError(fmt::format("Python's flag {} is none that it can be done with", printable(words[at], 40)));
  check_script(words[at]);
  command.script = words[at];
  return command;
}

}  // namespace vramfit
