// PyTorch's NCCL watchdog is a thread that looks every 100 ms which collectives are complete and lets go of their
// tensors. When that happens is a matter of the clock, so the same program would show other peaks each time. While
// held, collectives are complete for the watchdog only at points that the program names (the end of a step), where it
// waits until the watchdog has looked.
#pragma once

#include "phantom/core/streams.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// Whether the calling thread is a watchdog to which the event is not complete yet.
bool is_held_back(const Event& event);
/// The number that an event recorded now gets; see Event::period.
int current_period();

}  // namespace vramfit::phantom

// For the statistics of Python programs, which know where steps end.
PHANTOM_EXPORT void phantomHoldWatchdog();
PHANTOM_EXPORT void phantomReleaseWatchdog();
/// What was recorded before is complete; returns when the watchdogs have seen it, at once if there are none.
PHANTOM_EXPORT void phantomSettleWatchdog();
