// Offload of a DeepSpeed job for libraries whose host memory is always pinned.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace vramfit {

/// Job::offload without ":pageable". "params" alone then stands for states, too, as it does without that word.
inline std::vector<std::string> pinned_offload(std::vector<std::string> offload) {
  for (std::string& kind : offload) kind.erase(std::min(kind.find(":pageable"), kind.size()));
  if (std::ranges::find(offload, "params") != offload.end()) std::erase(offload, "optimizer");
  return offload;
}

}  // namespace vramfit
