// Stream-ordered memory (cudaMallocAsync). What a pool keeps back for later is not played: freed memory goes back at
// once.
#pragma once

#include <cstdint>

#include "phantom/core/status.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// What cudaMemPool_t and CUmemoryPool point to.
struct MemoryPool {
  int card = 0;
  bool is_default = false;
  std::int64_t used_bytes = 0, most_used_bytes = 0;
  std::uint64_t release_threshold = 0;
  int reuse[3] = {1, 1, 1};  // policies of reuse, which change nothing here
};

PHANTOM_CORE MemoryPool* default_pool(int card);  // null: no such card
PHANTOM_CORE MemoryPool* current_pool(int card);
PHANTOM_CORE Status set_current_pool(int card, MemoryPool* pool);
PHANTOM_CORE Status create_pool(int card, MemoryPool** pool);
PHANTOM_CORE Status destroy_pool(MemoryPool* pool);
PHANTOM_CORE bool is_pool(const MemoryPool* pool);

PHANTOM_CORE Status allocate_from_pool(MemoryPool* pool, std::int64_t bytes, void** address);
/// Also memory that came from no pool.
PHANTOM_CORE Status free_to_pool(void* address);

/// By the numbers that runtime and driver share; `value` is an int for the first three, else a 64-bit number.
PHANTOM_CORE Status pool_attribute(const MemoryPool* pool, int attribute, void* value);
PHANTOM_CORE Status set_pool_attribute(MemoryPool* pool, int attribute, const void* value);

}  // namespace vramfit::phantom
