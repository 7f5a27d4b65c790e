// Splits the rows of a long test over several ctest entries (SHARDS in the folder's CMakeLists.txt).
#pragma once

#include <cstddef>

namespace vramfit::testing {

struct Shard {
  std::size_t index = 0;  // from 0
  std::size_t count = 1;
};

/// What $VRAMFIT_TEST_SHARD says, "2/4" being index 1 of 4; the whole when it is unset. Throws std::invalid_argument.
Shard current_shard();

/// Whether this process does row `row`.
bool is_mine(std::size_t row);

}  // namespace vramfit::testing
