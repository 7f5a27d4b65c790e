// Device memory and events that another process of the node has made (cudaIpc...). Another process's memory is an
// address range whose contents are not known here; its owner pays for it.
#pragma once

#include <array>
#include <cstddef>

#include "phantom/core/status.h"
#include "phantom/core/streams.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// What both interfaces pass between processes.
using SharedHandle = std::array<std::byte, 64>;

/// Of the block that the address lies in, which must be the card's.
PHANTOM_CORE Status share_memory(const void* address, SharedHandle* handle);
/// Fails with invalid_context for a handle of this process, as the real ones do.
PHANTOM_CORE Status open_shared_memory(const SharedHandle& handle, void** address);
PHANTOM_CORE Status close_shared_memory(void* address);

PHANTOM_CORE Status share_event(const Event* event, SharedHandle* handle);
/// An event of this process that is complete: when the other one's is, is not played.
PHANTOM_CORE Status open_shared_event(const SharedHandle& handle, int card, Event** event);

}  // namespace vramfit::phantom
