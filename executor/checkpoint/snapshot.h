// A rank's part of a checkpoint as a copy on the host, so that it can be written while training goes on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace vramfit {

/// Its memory is kept from one save to the next: one copy of the rank's shard and states, never two.
struct Snapshot {
  std::int64_t step = 0;   // finished steps
  std::string header;      // of a safetensors file
  std::vector<char> data;  // what follows it
};

}  // namespace vramfit
