#include "program/pytorch/heap.h"

#include "base/units.h"

namespace vramfit::eager {

Tensor detached(const Tensor& tensor) {
  Tensor copy = tensor;
  copy.made_by.reset();
  return copy;
}

Heap::Heap(LedgerWriter& writer) : writer_(writer), is_open_(std::make_shared<bool>(true)) {}

Heap::~Heap() { *is_open_ = false; }

Tensor Heap::make(std::int64_t elements, Dtype dtype, Category category, std::string_view what, Stream stream) {
  Tensor tensor{.storage = nullptr, .elements = elements, .dtype = dtype, .made_by = nullptr};
  const Bytes bytes = elements * dtype_bytes(dtype);
  if (bytes.n == 0) return tensor;
  std::string label = scope;
  label.append(": ").append(what);
  const std::int64_t id = writer_.allocate(bytes, category, writer_.label(label), stream);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an id stored as a pointer, never dereferenced
  tensor.storage = {reinterpret_cast<void*>(id + 1), [this, id, is_open = is_open_](void*) {
                      if (*is_open) writer_.free(id);
                    }};
  return tensor;
}

}  // namespace vramfit::eager
