#include "executor/checkpoint/read_blocks.h"

#include <algorithm>
#include <vector>

namespace vramfit {

void read_blocks(const File& file, std::int64_t offset, std::int64_t bytes,
                 const std::function<void(std::int64_t done, std::span<char> block)>& use) {
  constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
  std::vector<char> block(static_cast<std::size_t>(std::min(kBlockBytes, bytes)));
  for (std::int64_t done = 0; done < bytes; done += kBlockBytes) {
    const auto part = std::span(block).first(static_cast<std::size_t>(std::min(kBlockBytes, bytes - done)));
    file.read(offset + done, part);
    use(done, part);
  }
}

}  // namespace vramfit
