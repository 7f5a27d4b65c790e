// The tools whose configurations are read, one a file in cli/configs/tools.
#pragma once

#include <string>
#include <string_view>

#include "cli/configs/draft.h"

namespace vramfit {

struct ConfigTool {
  std::string_view name;  // "accelerate"
  std::string_view what;  // "accelerate's configuration", for people
  /// How sure it is that a file is the tool's: 0 if it isn't; the highest of all tools decides.
  int (*score)(const ConfigNode& root);
  void (*read)(const ConfigNode& root, const std::string& file, Draft& draft);
  /// Of a tool that trains with its file alone: what starts all ranks, and what is one of them; "": there is none.
  std::string_view program = "", rank = "";
};

#define TOOL(name) const ConfigTool& name##_tool();
#include "cli/configs/tools.def"
#undef TOOL

/// The tool whose file it is; null if it is none's.
const ConfigTool* tool_of(const ConfigNode& root);

/// "accelerate, trainer, ...".
std::string known_tools();

inline constexpr int kSure = 100;  // a score

}  // namespace vramfit
