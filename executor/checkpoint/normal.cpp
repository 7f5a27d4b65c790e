#include "executor/checkpoint/normal.h"

#include <cmath>
#include <numbers>

#include "executor/training/counter_random.h"

namespace vramfit {
namespace {

struct Pair {
  float even, odd;
};

// Elements 2 * pair and 2 * pair + 1, of deviation 1. 24 bits a uniform number: exact in fp32.
Pair normal_pair(std::uint64_t key, std::uint64_t pair) {
  const std::uint64_t word = random_word(key, pair);
  const float above_zero = static_cast<float>((word >> 40U) + 1) * 0x1p-24F;  // (0, 1]
  const float turn = static_cast<float>(word & 0xFFFFFFU) * 0x1p-24F;         // [0, 1)
  const float radius = std::sqrt(-2.0F * std::log(above_zero));
  const float angle = 2.0F * std::numbers::pi_v<float> * turn;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

void fill_normal(std::uint64_t key, std::int64_t first, float deviation, std::span<float> into) {
  const auto begin = static_cast<std::uint64_t>(first);
  std::size_t i = 0;
  if (begin % 2 != 0 && !into.empty()) into[i++] = deviation * normal_pair(key, begin / 2).odd;
  for (; i + 1 < into.size(); i += 2) {
    const Pair pair = normal_pair(key, (begin + i) / 2);
    into[i] = deviation * pair.even;
    into[i + 1] = deviation * pair.odd;
  }
  if (i < into.size()) into[i] = deviation * normal_pair(key, (begin + i) / 2).even;
}

}  // namespace vramfit
