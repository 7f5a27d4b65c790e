// A rank's own buffers in a small operation: bytes that exist, and whether they are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "phantom/core/contents.h"
#include "phantom/nccl/operation.h"

namespace vramfit::phantom {

/// Host access to device memory. Throws InputError when the range is not memory that a card can reach.
std::byte* view(const void* address, std::int64_t bytes);
/// What is known of the range; host memory always is.
Knowledge knowledge_at(const void* address, std::int64_t bytes);
/// After writing through view(). What ghosts invented and is written to host memory counts as read.
void wrote(void* address, std::int64_t bytes, const Knowledge& knowledge);

struct Contribution {
  std::vector<std::byte> data;
  Knowledge knowledge;
};

/// What this rank has for `receiver`, multiplied by its scale if it has one: a copy, since the buffer may be reused.
Contribution contribution(const Operation& operation, int receiver);

/// Puts the sender's part where it belongs. Not for reductions.
void place(const Operation& operation, int sender, const Contribution& part);

}  // namespace vramfit::phantom
