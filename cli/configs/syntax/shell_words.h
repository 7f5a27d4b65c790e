// A shell script or a pasted command line as words, as far as that goes without running it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

struct ShellWord {
  std::string text;
  int line = 0;
  bool is_plain = true;  // holds no variable and no substitution
};

/// The commands of a text: quotes and backslashes are undone, comments left out. Throws InputError naming file and line
/// for a quote that isn't closed, and beyond kMostConfigBytes or kMostConfigNodes (cli/configs/syntax/tree.h).
std::vector<std::vector<ShellWord>> shell_commands(std::string_view text, const std::string& file);

}  // namespace vramfit
