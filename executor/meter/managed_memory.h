// Managed memory of CUDA, which the driver moves to the card or to the host, whoever touches it. No allocator knows of
// it.
#pragma once

#include "base/text/units.h"

namespace vramfit {

/// Throws FaultError with the runtime's reason: mostly too little host memory.
void* allocate_managed(Bytes bytes);
void free_managed(void* memory, Bytes bytes) noexcept;

/// The most that was allocated at once.
Bytes managed_memory();

}  // namespace vramfit
