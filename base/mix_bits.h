// Mixing of 64-bit words: draws of addresses, fingerprints of states, and the executor's random numbers.
#pragma once

#include <cstdint>

namespace vramfit {

/// Every bit of the result depends on every bit of `z`. Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators (OOPSLA 2014), the mixing of SplitMix64.
constexpr std::uint64_t mix_bits(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

/// One word from two, whose order counts.
constexpr std::uint64_t mix_bits(std::uint64_t a, std::uint64_t b) {
  return mix_bits(mix_bits(a + 0x9E3779B97F4A7C15ULL) + b);
}

}  // namespace vramfit
