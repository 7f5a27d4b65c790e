// A stretch of a file that need not fit in memory, block by block.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/files/file.h"

namespace vramfit {

/// Reads bytes [offset, offset + bytes), at most 1 MiB at a time: `use` gets how many came before, and a block, which
/// it may write to. Throws as File::read does.
void read_blocks(const File& file, std::int64_t offset, std::int64_t bytes,
                 const std::function<void(std::int64_t done, std::span<char> block)>& use);

}  // namespace vramfit
