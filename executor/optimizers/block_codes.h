// Codes of block-quantized states: of numbers, for CPU ranks and kernels, and of a block at a time on CPU ranks, in
// loops that the compiler turns into vectors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "executor/ops/e4m3.h"
#include "executor/ops/magnitudes.h"
#include "executor/ops/vectors.h"
#include "executor/optimizers/dynamic_map.h"
#include "executor/optimizers/on_both.h"

namespace vramfit {

template <std::size_t kCodes>
constexpr std::array<float, kCodes> values_of_codes(const std::array<float, kCodes>& sorted, int zero) {
  std::array<float, kCodes> values{};
  for (std::size_t code = 0; code < kCodes; ++code) values[code] = sorted[code ^ static_cast<std::size_t>(zero)];
  return values;
}

/// By a DynamicMap: with 7 decades a byte for each element, with 3 half a byte.
template <int kDecadeCount, bool kSigned>
struct DynamicCodes {
  using Map = DynamicMap<kDecadeCount>;
  static constexpr Map kMap{kSigned};
  static constexpr auto kSorted = kMap.values();
  /// The place of 0 among them. Codes are places with its bits turned over, so that bytes of zeros stand for zeros.
  static constexpr int kZero = kSigned ? kMap.one() - 1 : 0;
  static constexpr auto kValues = values_of_codes(kSorted, kZero);
  static constexpr std::int64_t kPerByte = kSorted.size() == 256 ? 1 : 2;
  static constexpr float kLargest = 1;  // value of a code

  /// What makes a cell's number of a magnitude.
  struct Decade {
    float threshold = 0, begin = 0, cells_per_one = 0;
    std::int32_t first = 0;
  };
  static constexpr std::array<Decade, Map::kDecades> decades() {
    std::array<Decade, Map::kDecades> rows{};
    for (int k = 0; k < Map::kDecades; ++k) {
      const bool from_least = !kSigned && k == 0;  // see borders_of
      rows[static_cast<std::size_t>(k)] = {
          .threshold = from_least ? std::numeric_limits<float>::min() : static_cast<float>(kMap.threshold(k)),
          .begin = static_cast<float>(Map::begin_of(k)),
          .cells_per_one = static_cast<float>(1 / kMap.width(k)),
          .first = kMap.first_of(k)};
    }
    return rows;
  }
  static constexpr auto kDecades = decades();
  static constexpr float kNearOne = static_cast<float>(kMap.threshold(Map::kTop));
  static constexpr int kOne = kMap.one();

  /// Of a number from -1 to 1 (unsigned: from 0).
  static std::int32_t encode(float x) { return encode(kDecades.data(), x); }
  /// With decades() from where the caller has them.
  VRAMFIT_ON_BOTH static std::int32_t encode(const Decade* decades, float x) {
    const float size = kSigned ? std::fabs(x) : x;
    float begin = 0, cells_per_one = 0;
    std::int32_t first = 0;
    for (int k = 0; k < Map::kDecades; ++k) {
      const Decade& decade = decades[k];
      const bool reaches = size >= decade.threshold;
      begin = reaches ? decade.begin : begin;
      cells_per_one = reaches ? decade.cells_per_one : cells_per_one;
      first = reaches ? decade.first : first;
    }
    // A decade goes on to the threshold of the next, and the unsigned map's least numbers are before its first cell: in
    // both places the cell at the end is the nearest.
    const auto cell = static_cast<std::int32_t>(std::max((size - begin) * cells_per_one, 0.0F));
    std::int32_t number = std::max(first + std::min(cell, kSigned ? first - 1 : first), 0);
    number = size >= kNearOne ? kOne : number;
    if constexpr (!kSigned) {
      return number;
    } else {
      const std::int32_t negative = kZero - std::min(number, +kZero);
      return (x < 0 ? negative : kZero + number) ^ kZero;
    }
  }
};

constexpr std::array<float, 16> sixteenths() {
  std::array<float, 16> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1) / 16;
  return values;
}

/// Half a byte for each element: sixteenths, without 0 (torchao/optim/subclass_4bit.py's map of second moments).
struct SixteenthCodes {
  static constexpr std::int64_t kPerByte = 2;
  static constexpr float kLargest = 1;
  static constexpr std::array<float, 16> kSorted = sixteenths(), kValues = kSorted;
  static constexpr int kZero = 0;
  VRAMFIT_ON_BOTH static std::int32_t encode(float x) {
    return std::clamp(static_cast<std::int32_t>(x * 16 - 0.5F), std::int32_t{0}, std::int32_t{15});
  }
};

/// Numbers of FP8 (e4m3). What isn't a number has one code, whatever its sign.
template <bool kSigned>
struct E4m3Codes {
  static constexpr std::int64_t kPerByte = 1;
  static constexpr float kLargest = E4m3::kLargest;
  static constexpr std::array<float, 256> values() {
    std::array<float, 256> values{};
    for (std::uint32_t code = 0; code < 256; ++code) {
      const bool is_number = (code & E4m3::kNoNumber) != E4m3::kNoNumber;
      values[code] = is_number ? E4m3::value(code) : std::numeric_limits<float>::quiet_NaN();
    }
    return values;
  }
  static constexpr auto kValues = values();
  /// Second averages that aren't 0 don't become 0, as with borders_of.
  VRAMFIT_ON_BOTH static std::int32_t encode(float x) {
    const auto code = static_cast<std::int32_t>(x == x ? E4m3::code(x) : +E4m3::kNoNumber);
    return kSigned ? code : std::max(code, x > 0 ? 1 : 0);
  }
};

/// What numbers of a block with that scale are multiplied by. A block of zeros stays one.
VRAMFIT_ON_BOTH inline float inverse_of_scale(float scale) {
  return scale >= std::numeric_limits<float>::min() ? 1 / scale : 0;
}

/// values = what the codes stand for. Of two codes in a byte, the lower half comes first.
template <typename Codes, std::int64_t kBlock>
void decode_block(const std::uint8_t* codes, float scale, float* values) {
  const float* const table = Codes::kValues.data();
  VRAMFIT_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < kBlock / Codes::kPerByte; ++i) {
    if constexpr (Codes::kPerByte == 1) {
      values[i] = table[codes[i]] * scale;
    } else {
      values[2 * i] = table[codes[i] & 0xF] * scale;
      values[2 * i + 1] = table[codes[i] >> 4] * scale;
    }
  }
}

/// Returns the block's scale.
template <typename Codes, std::int64_t kBlock>
float encode_block(const float* values, std::uint8_t* codes) {
  const float scale = kernels::largest_magnitude(values, kBlock) / Codes::kLargest;
  const float inverse = inverse_of_scale(scale);
  VRAMFIT_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < kBlock / Codes::kPerByte; ++i) {
    if constexpr (Codes::kPerByte == 1) {
      codes[i] = static_cast<std::uint8_t>(Codes::encode(values[i] * inverse));
    } else {
      const std::int32_t low = Codes::encode(values[2 * i] * inverse);
      const std::int32_t high = Codes::encode(values[2 * i + 1] * inverse);
      codes[i] = static_cast<std::uint8_t>(low | high << 4);
    }
  }
  return scale;
}

}  // namespace vramfit
