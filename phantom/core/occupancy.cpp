// How many blocks of a kernel fit on a multiprocessor: the rules of cuda_occupancy.h, which CUDA's runtime shares.
#include <algorithm>

#include "phantom/core/architecture.h"
#include "phantom/core/kernels.h"
#include "phantom/core/session.h"

namespace vramfit::phantom {

namespace {

constexpr int kRegisterUnit = 256;  // registers are given to warps in multiples of it
constexpr int kParts = 4;           // of a multiprocessor, each with its own registers; 2 on capability 6.0

template <class T>
T round_up(T value, T unit) {
  return (value + unit - 1) / unit * unit;
}

int blocks_by_registers(const KernelFacts& facts, int warps, int parts) {
  const int of_warp = round_up(facts.registers * kWarpSize, kRegisterUnit);
  if (of_warp == 0) return kMaxThreadsPerBlock;
  // The launch is checked as if each part held the same number of warps.
  if (of_warp * round_up(warps, parts) > kRegistersPerSm) return 0;
  return kRegistersPerSm / parts / of_warp * parts / warps;
}

std::int64_t blocks_by_shared_memory(const KernelFacts& facts, std::int64_t dynamic_bytes, const CardFacts& card,
                                     const Architecture& architecture) {
  const std::int64_t unit = card.major >= 8 ? 128 : 256;
  const std::int64_t reserved = card.major >= 8 ? kReservedSharedPerBlock : 0;
  const std::int64_t block = round_up(facts.static_shared_bytes + dynamic_bytes + reserved, unit);
  if (block > architecture.shared_memory_per_block_optin + reserved) return 0;
  return block == 0 ? kMaxThreadsPerBlock : architecture.shared_memory_per_sm / block;
}

}  // namespace

int occupancy(const KernelFacts& facts, int block_threads, std::int64_t dynamic_shared_bytes) {
  const CardFacts& card = session().card;
  const Architecture& architecture = architecture_of(card.major, card.minor);
  if (block_threads <= 0 || block_threads > std::min(kMaxThreadsPerBlock, facts.max_threads_per_block)) return 0;
  const int warps = (block_threads + kWarpSize - 1) / kWarpSize;
  const int parts = card.major == 6 && card.minor == 0 ? 2 : kParts;
  const int by_warps = architecture.max_threads_per_sm / kWarpSize / warps;
  const auto by_memory = static_cast<int>(blocks_by_shared_memory(facts, dynamic_shared_bytes, card, architecture));
  return std::min({by_warps, architecture.max_blocks_per_sm, blocks_by_registers(facts, warps, parts), by_memory});
}

int best_block_size(const KernelFacts& facts, std::int64_t (*dynamic_shared_bytes)(int, const void*),
                    const void* context, int limit) {
  int largest = std::min(kMaxThreadsPerBlock, facts.max_threads_per_block);
  if (limit > 0) largest = std::min(largest, limit);
  int best = 0, best_threads = 0;
  for (int threads = round_up(largest, kWarpSize); threads > 0; threads -= kWarpSize) {
    const int size = std::min(threads, largest);
    const int held = size * occupancy(facts, size, dynamic_shared_bytes(size, context));
    if (held > best_threads) {
      best_threads = held;
      best = size;
    }
  }
  return best;
}

}  // namespace vramfit::phantom
