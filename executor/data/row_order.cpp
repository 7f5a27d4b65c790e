#include "executor/data/row_order.h"

#include <bit>

#include "executor/training/counter_random.h"

namespace vramfit {
namespace {

constexpr std::uint64_t kRounds = 4;

}  // namespace

std::int64_t file_row(std::int64_t index, std::int64_t rows, std::uint64_t seed) {
  const auto count = static_cast<std::uint64_t>(rows);
  const std::uint64_t epoch = static_cast<std::uint64_t>(index) / count;
  const std::uint64_t key = random_word(stream_key(seed, "row order"), epoch);
  const auto half_bits = static_cast<unsigned>(std::bit_width(count - 1) + 1) / 2;
  const std::uint64_t half_mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t place = static_cast<std::uint64_t>(index) % count;
  // The domain is less than four times `count`, and the walk never leaves the cycle of a valid start: it ends.
  do {
    std::uint64_t left = place >> half_bits, right = place & half_mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t next = left ^ (random_word(key + round, right) & half_mask);
      left = right;
      right = next;
    }
    place = (left << half_bits) | right;
  } while (place >= count);
  return static_cast<std::int64_t>(place);
}

}  // namespace vramfit
