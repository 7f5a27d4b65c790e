// Mixing of 64-bit words and hashes of texts: draws of addresses, fingerprints of states, and the executor's random
// numbers.
#pragma once

#include <cstdint>
#include <string_view>

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

/// FNV-1a (Fowler, Noll, Vo), 64 bits, of `text` and of what `hash` is already the hash of.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = 0xCBF29CE484222325ULL) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace vramfit
