#include "cli/configs/tools.h"

#include <array>

#include <fmt/format.h>

namespace vramfit {
namespace {

constexpr std::array kTools{
#define TOOL(name) &name##_tool,
#include "cli/configs/tools.def"
#undef TOOL
};

}  // namespace

const ConfigTool* tool_of(const ConfigNode& root) {
  const ConfigTool* best = nullptr;
  int highest = 0;
  for (const auto tool : kTools) {
    const int score = tool().score(root);
    if (score <= highest) continue;
    highest = score;
    best = &tool();
  }
  return best;
}

std::string known_tools() {
  std::string names;
  for (const auto tool : kTools) names += fmt::format("{}{}", names.empty() ? "" : ", ", tool().what);
  return names;
}

}  // namespace vramfit
