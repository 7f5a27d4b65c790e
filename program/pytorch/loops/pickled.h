// How many bytes Python's pickle (protocol 4) makes of texts that TRL's trainers send to all ranks for their logs.
#pragma once

#include <cstdint>

namespace vramfit::eager {

/// Of a list of `count` texts of `tokens` each, which are words of four letters with a space between them.
std::int64_t pickled_texts(std::int64_t count, std::int64_t tokens);

}  // namespace vramfit::eager
