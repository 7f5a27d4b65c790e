// Flags as other tools spell them, read as ours: --batch-size, --gradient-checkpointing, --bf16.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace vramfit {

/// The words with each flag that `command` does not have under its own name replaced by the flag that it means, up to
/// "--"; '_' counts as '-'. What was replaced is said in `notes`, one sentence each. Other words stay as they are.
std::vector<std::string> with_known_flags(const CLI::App& command, const std::vector<std::string>& words,
                                          std::vector<std::string>& notes);

/// What answers instead of a flag that isn't modelled, for messages: "; Unsloth's kernels are not modelled"; "" for
/// other words.
std::string hint_for_flag(std::string word);

/// A field of the job and its value.
struct KnownSetting {
  std::string field, value;
};

/// What KEY=VALUE means where KEY is another tool's word for a field: "gradient-checkpointing=on" is checkpointing
/// full. Nothing for other words, and for a switch that is off, which doesn't say what should be instead.
std::optional<KnownSetting> known_setting(std::string key, const std::string& value);

}  // namespace vramfit
