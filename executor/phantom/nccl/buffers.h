// A rank's own buffers in a small operation: bytes that exist, and whether they are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/phantom/nccl/operation.h"

namespace vramfit::phantom {

/// Host access to device memory. Throws InputError when the range is not memory that a card can reach.
std::byte* view(const void* address, std::int64_t bytes);
/// Whether what the range holds is known; host memory always is.
bool is_known(const void* address, std::int64_t bytes);
/// After writing through view().
void wrote(void* address, std::int64_t bytes, bool certain);

struct Contribution {
  std::vector<std::byte> data;
  bool certain = true;
};

/// What this rank has for `receiver`, multiplied by its scale if it has one: a copy, since the buffer may be reused.
Contribution contribution(const Operation& operation, int receiver);

/// Puts the sender's part where it belongs. Not for reductions.
void place(const Operation& operation, int sender, const Contribution& part);

}  // namespace vramfit::phantom
