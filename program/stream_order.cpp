#include "program/stream_order.h"

#include <algorithm>

namespace vramfit::program {

void StreamOrder::wait(int token, Stream stream) {
  const StreamPoints& done = done_[static_cast<std::size_t>(token)];
  StreamPoints& seen = seen_[index(stream)];
  for (std::size_t s = 0; s < seen.size(); ++s) seen[s] = std::max(seen[s], done[s]);
}

bool StreamOrder::is_before(const StreamPoints& points, Stream stream) const {
  const StreamPoints& seen = seen_[index(stream)];
  for (std::size_t s = 0; s < seen.size(); ++s) {
    if (points[s] > seen[s]) return false;
  }
  return true;
}

}  // namespace vramfit::program
