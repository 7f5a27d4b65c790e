// Host memory that the CUDA driver has locked in place, so that a card copies from and to it beside everything else.
#pragma once

#include "base/text/units.h"

namespace vramfit {

/// Throws FaultError with the driver's reason: mostly a limit on locked memory (ulimit -l) or too little of it.
void register_host_memory(void* memory, Bytes bytes);
void unregister_host_memory(void* memory, Bytes bytes) noexcept;

/// The most that was registered at once.
Bytes registered_host_memory();

}  // namespace vramfit
