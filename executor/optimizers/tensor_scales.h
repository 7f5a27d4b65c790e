// Scales of tensors whose numbers are stored in few bits: powers of two, as MS-AMP computes them
// (msamp/common/tensor/meta.py, compute_scaling_factor). A number that stays the same stays so when its scale changes,
// but for the smallest.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "executor/optimizers/on_both.h"

namespace vramfit {

/// A format whose largest number is 2^exponent (2 - (rest + 1) / 2^23).
struct ScaledFormat {
  std::int32_t exponent, rest;
};
inline constexpr ScaledFormat kE4m3Format{.exponent = 8, .rest = 0x1FFFFF};  // 448
inline constexpr ScaledFormat kF16Format{.exponent = 15, .rest = 0x1FFF};    // 65504

/// fp16's least number. A second average that isn't 0 doesn't become 0, as it divides.
inline constexpr float kLeastF16 = 0x1p-24F;

/// Of fp32 numbers' bits.
inline constexpr std::int32_t kFloatExponent = 0x7F800000, kFloatBits = 23;

/// Of magnitudes' bits, the least and the most whose scale is computed: below, it would be no normal number; and what
/// is no number counts as infinite.
VRAMFIT_ON_BOTH inline constexpr std::int32_t least_bits(const ScaledFormat& format) {
  return (format.exponent + 1) << kFloatBits;
}
inline constexpr std::int32_t kMostBits = kFloatExponent;

/// The least power of two that `largest` can be divided by to be no more than the format's largest number; at least the
/// least normal number, also of zeros.
VRAMFIT_ON_BOTH inline float scale_of(float largest, const ScaledFormat& format) {
  const std::int32_t bits = std::clamp(std::bit_cast<std::int32_t>(largest), least_bits(format), +kMostBits);
  return std::bit_cast<float>(((bits + format.rest) & kFloatExponent) - (format.exponent << kFloatBits));
}

}  // namespace vramfit
