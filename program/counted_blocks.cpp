#include "program/counted_blocks.h"

namespace vramfit {

Block CountedBlocks::allocate(std::int64_t elements, Dtype dtype, Category category, int label) {
  const Bytes bytes = elements * dtype_bytes(dtype);
  if (bytes.n == 0) return nullptr;
  const std::int64_t id = writer_.allocate(bytes, category, label);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an id stored as a pointer, never dereferenced
  return {reinterpret_cast<void*>(id + 1), [this, id](void*) {
            if (!taken_) writer_.free(id);
          }};
}

}  // namespace vramfit
