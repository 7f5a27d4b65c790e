// Normally distributed numbers by hash.
#pragma once

#include <cstdint>
#include <span>

namespace vramfit {

/// Elements `first` and up of the stream `key`: normal with mean 0 and deviation `deviation`, by Box and Muller's
/// transform of hashed pairs (Annals of Mathematical Statistics 29, 1958). An element depends on key and index only.
void fill_normal(std::uint64_t key, std::int64_t first, float deviation, std::span<float> into);

}  // namespace vramfit
