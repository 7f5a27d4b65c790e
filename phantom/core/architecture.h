// Properties that follow from a card's compute capability: what host code reads to choose kernels and workspaces.
// Source: "Compute Capabilities" tables of the CUDA C++ Programming Guide 13.0.
#pragma once

#include <cstdint>
#include <string_view>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

struct Architecture {
  int compute_capability = 0;  // 10 * major + minor
  int shared_memory_per_sm = 0;
  int shared_memory_per_block_optin = 0;
  int max_threads_per_sm = 0;
  int max_blocks_per_sm = 0;
  std::int64_t l2_bytes = 0;  // of the largest card of this capability, but for those with one of their own
  int memory_bus_bits = 0;
  int clock_khz = 0, memory_clock_khz = 0;
};

inline constexpr int kSharedMemoryPerBlock = 48 << 10;
inline constexpr int kRegistersPerSm = 65536;
inline constexpr int kMaxThreadsPerBlock = 1024;
inline constexpr int kWarpSize = 32;
/// Taken by the system of each block on compute capability 8.0 and above.
inline constexpr int kReservedSharedPerBlock = 1 << 10;

/// The row of this capability, or of the nearest lower one.
PHANTOM_CORE const Architecture& architecture_of(int major, int minor);
/// L2 of a card of the catalog; that of its capability's largest card where its own is not known.
PHANTOM_CORE std::int64_t l2_bytes(std::string_view catalog_name, const Architecture& architecture);

}  // namespace vramfit::phantom
