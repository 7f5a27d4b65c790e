#pragma once

#include <cstdint>

namespace vramfit {

/// The largest number of bytes that a file may state: far above any machine's, and sums of several don't overflow.
inline constexpr std::int64_t kMostStatedBytes = std::int64_t{1} << 60;

}  // namespace vramfit
