// Settings of a command line that take the place of a file's: batch_size=4, ~clip_grad_norm, --micro-batch-size 4.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/configs/draft.h"
#include "cli/configs/syntax/shell_words.h"

namespace vramfit {

struct Override {
  std::string key;          // "optimizer.fused"
  ConfigNode value;         // with the place where it stands
  bool is_removal = false;  // of the key: ~key
};

/// A value as YAML has it, as OmegaConf reads those of command lines; `word` is where it stands.
Override override_of(std::string key, std::string_view value, const ShellWord& word, const std::string& file);

/// Of flags, each in place of a key.
std::vector<Override> overrides_of(const ConfigNode& flags, const std::string& file);

/// Changes the map that `path` has, and says which of its keys no longer count. Throws InputError for a removal of a
/// key that isn't there.
void apply_overrides(const std::vector<Override>& overrides, ConfigNode& map, const std::string& path, Draft& draft);

}  // namespace vramfit
