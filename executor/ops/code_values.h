// What codes of quantized matrices stand for, without LibTorch.
#pragma once

#include <array>
#include <cstdint>

#include "executor/ops/e4m3.h"
#include "executor/optimizers/block_codes.h"
#include "executor/optimizers/on_both.h"

namespace vramfit {

/// NormalFloat of 4 bits, ascending (Dettmers et al. 2023, arXiv:2305.14314, appendix E).
inline constexpr std::array<float, 16> kNormalFloats{-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};

/// Of scales of 8 bits: the dynamic map with a sign, in ascending order (kSorted).
using ScaleCodes = DynamicCodes<7, true>;

inline constexpr float kOneOfInt8 = 7.874015718698502e-3F;  // 1 / 127, as int8_vectorwise_dequant has it

/// What a byte stands for in a row with that scale.
struct NumberOfInt8 {
  VRAMFIT_ON_BOTH float operator()(std::uint8_t code, float scale) const {
    return static_cast<float>(static_cast<std::int8_t>(code)) * scale * kOneOfInt8;
  }
};
struct NumberOfE4m3 {
  VRAMFIT_ON_BOTH float operator()(std::uint8_t code, float scale) const { return E4m3::value(code) * scale; }
};

}  // namespace vramfit
