// Reads a program for host memory: what its buffers outside the device take.
#pragma once

#include "program/program.h"

namespace vramfit {

/// The most that a rank's buffers in host memory take at once. Pinned ones are registered at their exact size; those
/// that kernels ask for themselves are rounded up to a power of two, as PyTorch's pool of pinned memory makes them.
/// What CPU ranks hold on their "device" is not among them.
Bytes host_bytes(const program::Program& program);

/// The most that a rank's buffers in managed memory take at once. It lies where it was touched last, and on the card
/// only while that has room.
Bytes managed_bytes(const program::Program& program);

}  // namespace vramfit
