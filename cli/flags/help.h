// The text of --help: usage, examples, arguments, then flags under headings, wrapped to the terminal.
#pragma once

#include <memory>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
class FormatterBase;
}  // namespace CLI

namespace vramfit {

/// Headings in the order in which help shows them; a flag's CLI11 group is one of them.
inline constexpr const char* kCommonFlags = "Common";
inline constexpr const char* kShardingFlags = "Sharding";
inline constexpr const char* kPrecisionFlags = "Precision";
inline constexpr const char* kMemoryFlags = "Memory";
inline constexpr const char* kSoftwareFlags = "Software";
inline constexpr const char* kRecipeFlags = "Recipe";
inline constexpr const char* kRunFlags = "Run";
inline constexpr const char* kOptimizerFlags = "Optimizer";
inline constexpr const char* kCheckpointFlags = "Checkpoints";
inline constexpr const char* kOutputFlags = "Output";

/// Writes help for an app of make_command_line(); its commands' usage and examples come from the table of commands.
std::shared_ptr<CLI::FormatterBase> help_formatter();

/// Help of the command called `name`, of all commands for "". Throws InputError with a suggestion.
std::string help_of(const std::string& name);

}  // namespace vramfit
