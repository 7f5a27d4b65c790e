#include "program/pytorch/zero/zero_host.h"

namespace vramfit::eager {

Tensor offloaded(Heap& heap, bool is_pinned, std::int64_t elements, Dtype dtype, Category category,
                 const std::string& what, const Tensor& from) {
  const Tensor pageable = heap.make_on_host(elements, dtype, category, is_pinned ? what + ", not pinned yet" : what);
  Tensor pinned = is_pinned ? heap.make_pinned(elements, dtype, category, what) : Tensor{};
  if (from.storage) {
    heap.run("aten::_to_copy", {reads(from), writes(pageable)}, {.bytes = bytes_in(from) + bytes_in(pageable)},
             Stream::host);
  }
  if (!is_pinned) return pageable;
  if (from.storage) {
    heap.run("aten::copy_", {reads(pageable), writes(pinned)}, {.bytes = 2 * bytes_in(pageable)}, Stream::host);
  }
  return pinned;
}

}  // namespace vramfit::eager
