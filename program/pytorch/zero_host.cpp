#include "program/pytorch/zero_host.h"

namespace vramfit::eager {

Tensor pinned(Heap& heap, std::int64_t elements, Dtype dtype, Category category, const std::string& what,
              const Tensor& from) {
  const Tensor pageable = heap.make_on_host(elements, dtype, category, what + ", not pinned yet");
  Tensor made = heap.make_pinned(elements, dtype, category, what);
  if (!from.storage) return made;
  heap.run("aten::_to_copy", {reads(from), writes(pageable)}, {.bytes = bytes_in(from) + bytes_in(pageable)},
           Stream::host);
  heap.run("aten::copy_", {reads(pageable), writes(made)}, {.bytes = 2 * bytes_in(pageable)}, Stream::host);
  return made;
}

}  // namespace vramfit::eager
