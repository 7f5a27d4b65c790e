// Reads a program for host memory: what its buffers outside the device take.
#pragma once

#include <vector>

#include "program/program.h"

namespace vramfit {

/// The most that a rank's buffers in host memory take at once. Pinned ones are registered at their exact size; those
/// that kernels ask for themselves come from PyTorch's pool (pinned_by_pool).
/// What CPU ranks hold on their "device" is not among them.
Bytes host_bytes(const program::Program& program);

/// The same of one phase: of load and the first step, or of later ones and of saving.
struct HostPhase {
  Phase phase = Phase::load;
  bool is_steady = false;
  Bytes peak;
};
/// Both, from one reading. Each phase stands there once for the first step and once for later ones; a program that
/// holds nothing in host memory has none.
struct HostUse {
  Bytes peak;
  std::vector<HostPhase> phases;
};
HostUse host_use(const program::Program& program);

/// What PyTorch's pool of pinned memory takes for so many bytes: it rounds up to a power of two
/// (CachingHostAllocatorImpl.h).
Bytes pinned_by_pool(Bytes bytes);

/// The most that a rank's buffers in managed memory take at once. It lies where it was touched last, and on the card
/// only while that has room.
Bytes managed_bytes(const program::Program& program);

}  // namespace vramfit
