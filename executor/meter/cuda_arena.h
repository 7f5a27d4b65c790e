// The arena of a CUDA rank: CUDA's caching allocator in LibTorch is replaced by one that asks the arena first.
#pragma once

#include <memory>

#include "executor/meter/arena.h"

namespace vramfit {

/// Its block comes from the caching allocator that there is. From here on requests of this process's threads go to
/// their arena first (ArenaScope). Throws what LibTorch throws where the card has no room for the block.
std::shared_ptr<Arena> open_cuda_arena(arena::Script script);

/// Whether the caching allocator hands out an arena's block at this moment, on this thread: that is no tensor.
bool is_opening_cuda_arena();

/// Of the arena that was opened; null: none, or given back.
std::shared_ptr<Arena> cuda_arena();
/// What the caching allocator counts as allocated for its block.
Bytes cuda_arena_block();

}  // namespace vramfit
