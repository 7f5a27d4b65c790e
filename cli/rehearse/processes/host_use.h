// What rehearsals take of the host, so that no more run at once than it bears.
#pragma once

#include <sys/types.h>

#include <vector>

#include "base/text/units.h"

namespace vramfit {

/// Of each of `roots` with all its descendants: memory that only they hold (resident and neither a file's nor shared
/// with their parent as far as the kernel says), in the order of `roots`.
std::vector<Bytes> host_memory_of(const std::vector<pid_t>& roots);

/// What the machine, or the cgroup that this process is in, can still give without swapping.
Bytes available_host_memory();

/// Cores that this process may use: its affinity, and its cgroup's share; at least 1.
int usable_cores();

}  // namespace vramfit
