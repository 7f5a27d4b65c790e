// Numbers of FP8 with 4 bits of exponent and 3 of fraction, without infinities (e4m3fn: Micikevicius et al. 2022,
// arXiv:2209.05433), for CPU ranks and kernels, without LibTorch.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "executor/optimizers/on_both.h"

namespace vramfit {

struct E4m3 {
  static constexpr float kLargest = 448, kLeastNormal = 0x1p-6F, kLeast = 0x1p-9F;
  static constexpr std::uint32_t kNoNumber = 0x7F;
  // A float has a bias 120 more, and 20 more bits of fraction.
  static constexpr std::uint32_t kBias = 120, kBits = 20, kFloatBits = 23;

  VRAMFIT_ON_BOTH static constexpr float value(std::uint32_t code) {
    const std::uint32_t size = code & 0x7FU, in_place = size << kBits;
    const auto normal = std::bit_cast<float>(in_place + (kBias << kFloatBits));
    // Without an exponent, eighths of the least normal number: what is above it in the next range.
    const float small = std::bit_cast<float>(in_place + ((kBias + 1) << kFloatBits)) - kLeastNormal;
    const auto bits = std::bit_cast<std::uint32_t>(size < 8 ? small : normal);
    return std::bit_cast<float>((size == kNoNumber ? 0x7FC00000U : bits) | (code & 0x80U) << 24U);
  }

  /// The nearest, to even; of what is beyond the largest number, that one.
  VRAMFIT_ON_BOTH static std::uint32_t code(float x) {
    constexpr float kOfEighths = 0x1p14F;  // neighbours there differ by an eighth of the least normal number
    const float size = std::min(std::fabs(x), +kLargest);
    const auto bits = std::bit_cast<std::uint32_t>(size);
    const std::uint32_t normal = ((bits + 0x7FFFFU + (bits >> kBits & 1U)) >> kBits) - (kBias << 3U);
    const std::uint32_t small =
        std::bit_cast<std::uint32_t>(size + kOfEighths) - std::bit_cast<std::uint32_t>(kOfEighths);
    const std::uint32_t number = size < kLeastNormal ? small : normal;
    return (x == x ? number : kNoNumber) | (std::bit_cast<std::uint32_t>(x) >> 24U & 0x80U);
  }
};

}  // namespace vramfit
