#include "tests/support/shard.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace vramfit::testing {

Shard current_shard() {
  const char* text = std::getenv("VRAMFIT_TEST_SHARD");
  if (text == nullptr) return {};
  std::size_t number = 0;
  std::size_t count = 0;
  if (std::sscanf(text, "%zu/%zu", &number, &count) != 2 || number == 0 || number > count) {
    throw std::invalid_argument(std::string("VRAMFIT_TEST_SHARD: \"") + text + "\" is not of the form 2/4");
  }
  return {.index = number - 1, .count = count};
}

bool is_mine(std::size_t row) {
  static const Shard kShard = current_shard();
  return row % kShard.count == kShard.index;
}

}  // namespace vramfit::testing
