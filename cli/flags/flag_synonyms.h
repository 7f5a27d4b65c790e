// Flags as other tools spell them, read as ours: --batch-size, --gradient-checkpointing, --bf16.
#pragma once

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

}  // namespace vramfit
