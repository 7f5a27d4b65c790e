// The command line as a whole: the table of commands, and what CLI11 reports turned into our errors.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace vramfit {

/// One command. `add` declares its flags and sets a callback that does the work and leaves the exit code in
/// `exit_code`.
struct Command {
  std::string_view name, usage;  // usage: what follows "vramfit"
  std::string_view summary;
  std::array<std::string_view, 3> examples;  // whole lines to type; "" where there are fewer
  void (*add)(CLI::App& command, int& exit_code);
  bool takes_words = false;  // what follows "--" is the user's own command, which is not interpreted here
};

/// Put in front of words after "--" before CLI11 sees them, because it would split "[a,b]" and drop "". A command that
/// takes words removes it.
inline constexpr char kWordMark = '\x01';

/// All commands, in the order of --help.
std::span<const Command> commands();

/// The program without a command: its own help.
const Command& whole_program();

/// The tree of commands and flags; callbacks write to `exit_code`, which must outlive the app. Making all flags takes
/// longer than many a command: with `words`, only commands that are among them have theirs.
std::unique_ptr<CLI::App> make_command_line(int& exit_code, std::span<const std::string_view> words = {});

/// Parses and runs; returns the exit code. Throws Error for anything the user should read.
int run_command_line(int argc, char** argv);

/// The version as --version prints it: "vramfit 0.1.0".
std::string version_text();

}  // namespace vramfit
