// Tensors in host memory as DeepSpeed's offload makes them.
#pragma once

#include <cstdint>
#include <string>

#include "program/pytorch/heap.h"

namespace vramfit::eager {

/// pin_memory of what is in pageable memory: a copy, made by PyTorch's pool. `from`: what it is converted from, or
/// nothing for zeros, which are written over before anything reads them, so that their writes are left out.
Tensor pinned(Heap& heap, std::int64_t elements, Dtype dtype, Category category, const std::string& what,
              const Tensor& from = {});

}  // namespace vramfit::eager
