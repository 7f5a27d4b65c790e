// The settings of PyTorch's CUDA caching allocator: what PYTORCH_ALLOC_CONF says, read and checked.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/text/units.h"

namespace vramfit {

inline constexpr Bytes kUnlimited{std::numeric_limits<std::int64_t>::max()};
inline constexpr std::size_t kRoundupIntervals = 16;

/// Defaults are those of PyTorch 2.11. Keys that choose how memory is pinned on the host, which lock is held, or what a
/// graph capture reuses are parsed and validated, and have no effect here.
struct AllocatorSettings {
  bool expandable_segments = false;
  Bytes large_segment = 20 * kMiB;           // segment of a request of 1 to 10 MiB; page of an expandable large segment
  Bytes max_split = kUnlimited;              // blocks of this size and more are never split
  Bytes max_non_split_rounding = 20 * kMiB;  // how much larger an unsplit block may be; by default `large_segment`
  double garbage_collection_threshold = 0;   // of what the process may use; 0: no collection
  double memory_fraction = 1;                // of the card's total memory
  /// Parts into which the interval between powers of two is divided when sizes are rounded up: for sizes from
  /// 1 MiB (and below), 2 MiB, 4 MiB, ... 0 and 1: sizes are rounded up to 512 bytes.
  std::array<std::int64_t, kRoundupIntervals> roundup_divisions{};
  bool malloc_async = false;  // backend:cudaMallocAsync: CUDA's own pools, not this allocator

  bool operator==(const AllocatorSettings&) const = default;
};

/// Reads "KEY:VALUE,...", PyTorch's form, or "KEY=VALUE,...". Throws InputError that names key and value. Stricter than
/// PyTorch, which skips what it can't parse: trailing characters or a missing colon are refused.
AllocatorSettings parse_allocator_settings(std::string_view text);

/// The settings of `--allocator native|expandable|gradients-first|arena|KEY=VALUE,...`. An arena's block, and what is
/// not in its script, come from the native allocator.
AllocatorSettings allocator_settings(std::string_view allocator);

/// Whether a program allocates a layer's gradients before it computes the layer again in backward, so that they take
/// what the layer above has left. Segments are expandable.
inline bool puts_gradients_first(std::string_view allocator) { return allocator == "gradients-first"; }
/// Whether it is one of the names for expandable segments.
inline bool names_expandable_segments(std::string_view allocator) {
  return allocator == "expandable" || puts_gradients_first(allocator);
}

/// Whether one block holds all that the job's program asks for (program/arena).
inline bool is_arena(std::string_view allocator) { return allocator == "arena"; }

/// What blocks are multiples of, and the least size of one.
inline constexpr std::int64_t kMinBlock = 512;

/// The block size for a request where no interval is divided: at least 512 bytes, in multiples of 512.
inline std::int64_t rounded_to_blocks(std::int64_t bytes) {
  return bytes < kMinBlock ? kMinBlock : (bytes + kMinBlock - 1) & -kMinBlock;
}

/// The block size for a request: at least 512 bytes, in multiples of 512, or rounded up to a division of the interval
/// between powers of two.
std::int64_t rounded_request(const AllocatorSettings& settings, std::int64_t bytes);

}  // namespace vramfit
