// Random numbers without a generator: every number is a hash of where it is used, so that any mesh, any order and any
// resumed run draws the same.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/numbers/mix_bits.h"

namespace vramfit {

/// The `counter`-th word of the stream `key`: SplitMix64's output for that state.
constexpr std::uint64_t random_word(std::uint64_t key, std::uint64_t counter) {
  return mix_bits(key + (counter + 1) * 0x9E3779B97F4A7C15U);
}

/// A random mask keeps an element of probability p whose word's upper bits are below threshold_of(p).
constexpr int kProbabilityBits = 53;
constexpr std::uint64_t threshold_of(double keep) {
  return static_cast<std::uint64_t>(keep * static_cast<double>(std::uint64_t{1} << kProbabilityBits));
}
constexpr bool is_kept(std::uint64_t word, std::uint64_t threshold) {
  return (word >> (64 - kProbabilityBits)) < threshold;
}

/// A stream of its own for (seed, name): FNV-1a over the name, mixed with the seed.
constexpr std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
  return mix_bits(mix_bits(seed) ^ fnv1a(name));
}

}  // namespace vramfit
