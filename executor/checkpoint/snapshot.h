// A rank's part of a checkpoint as a copy on the host, so that it can be written while training goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace vramfit {

/// Where the program keeps the one copy of the rank's shard and states.
struct Snapshot {
  std::int64_t step = 0;                    // finished steps
  std::string header;                       // of a safetensors file
  std::span<const char> data;               // what follows it
  std::shared_ptr<const void> keeps_alive;  // that memory
};

}  // namespace vramfit
