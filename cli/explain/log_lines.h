// The lines of a log of any size, each with who wrote it: launchers put a rank, a node or a pod in front.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace vramfit {

struct LogLine {
  std::int64_t number = 0;  // from 1 on; what a progress bar overwrites with '\r' is one line
  std::string_view source;  // what stood in front: "[rank3]:", "worker-0 |"; "" for nothing
  std::optional<int> rank;  // that `source` names
  std::string_view text;    // without it, and without colours
};

/// Takes `source` and rank off the front of a line. Exposed for tests.
LogLine split_prefix(std::string_view line);

/// Calls `take` with each line of the regular file `path`, in order, keeping one at a time: of a line of more than 64
/// KiB its beginning. Throws InputError naming the file.
void for_each_line(const std::string& path, const std::function<void(const LogLine&)>& take);

}  // namespace vramfit
