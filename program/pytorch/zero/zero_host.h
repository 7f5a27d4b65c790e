// Tensors in host memory as DeepSpeed's offload makes them.
#pragma once

#include <cstdint>
#include <string>

#include "program/pytorch/walk/heap.h"

namespace vramfit::eager {

/// DeepSpeed makes all of it in pageable memory. What is pinned (`pin_memory` of its configuration) is a copy of that,
/// made by PyTorch's pool. `from`: what it is converted from, or nothing for zeros, which are written over before
/// anything reads them, so that their writes are left out.
Tensor offloaded(Heap& heap, bool is_pinned, std::int64_t elements, Dtype dtype, Category category,
                 const std::string& what, const Tensor& from = {});

}  // namespace vramfit::eager
