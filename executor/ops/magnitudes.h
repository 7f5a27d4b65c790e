// The largest of many numbers, in a loop that the compiler turns into vectors.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "executor/ops/vectors.h"

namespace vramfit::kernels {

/// The largest magnitude of `count` numbers, 0 of none; NaN if there is one. Magnitudes of floats are ordered as their
/// bits are.
template <typename T>
float largest_magnitude(const T* values, std::int64_t count) {
  std::int32_t largest = 0;
  VRAMFIT_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(std::fabs(static_cast<float>(values[i]))));
  }
  return std::bit_cast<float>(largest);
}

}  // namespace vramfit::kernels
