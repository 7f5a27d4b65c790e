// The values that codes of block-quantized states stand for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace vramfit {

/// Dynamic quantization (Dettmers et al., arXiv:2110.02861, section 2.1; bitsandbytes/functional.py,
/// create_dynamic_map): a decade k from 0 up to the last, which ends at 1, is cut into equal cells, twice as many as
/// the decade below has, whose middles are the values; 0 and 1 are values too. Signed, decade k has 2^k cells for
/// either sign and -1 is none of the values; unsigned, 2^(k+1).
template <int kDecadeCount>
struct DynamicMap {
  static constexpr int kDecades = kDecadeCount, kTop = kDecades;
  static constexpr std::size_t kCodes = std::size_t{2} << static_cast<unsigned>(kDecades);

  bool is_signed = true;

  constexpr int cells(int decade) const { return 1 << (decade + (is_signed ? 0 : 1)); }
  static constexpr double end_of(int decade) {
    double end = 1;
    for (int d = decade; d < kDecades - 1; ++d) end /= 10;
    return end;
  }
  static constexpr double begin_of(int decade) { return end_of(decade) / 10; }
  constexpr double width(int decade) const { return 0.9 * end_of(decade) / cells(decade); }
  constexpr double middle(int decade, int cell) const { return begin_of(decade) + (cell + 0.5) * width(decade); }
  /// The codes of magnitudes count up from 0, which has 0; a decade's first cell has this one.
  constexpr int first_of(int decade) const { return is_signed ? cells(decade) : cells(decade) - 1; }
  constexpr int one() const { return first_of(kTop); }
  /// From here on, a magnitude is nearer to the decade's first value than to the one below; kTop: nearer to 1.
  constexpr double threshold(int decade) const {
    const double below = decade == 0 ? 0 : middle(decade - 1, cells(decade - 1) - 1);
    const double above = decade == kTop ? 1 : middle(decade, 0);
    return (below + above) / 2;
  }

  /// Ascending.
  constexpr std::array<float, kCodes> values() const {
    std::array<float, kCodes> values{};
    const int zero = is_signed ? one() - 1 : 0;
    for (int decade = 0; decade < kDecades; ++decade) {
      for (int cell = 0; cell < cells(decade); ++cell) {
        const int number = first_of(decade) + cell;
        const auto value = static_cast<float>(middle(decade, cell));
        values[static_cast<std::size_t>(zero + number)] = value;
        if (is_signed) values[static_cast<std::size_t>(zero - number)] = -value;
      }
    }
    values[static_cast<std::size_t>(zero + one())] = 1;
    return values;
  }
};

/// Between neighbouring values of a map, the middle: a number has the code whose value is nearest. Second moments that
/// aren't 0 never get the code of 0, so that their averages are never divided by epsilon alone.
template <std::size_t kCodes>
constexpr std::array<float, kCodes> borders_of(const std::array<float, kCodes>& values, bool is_signed) {
  std::array<float, kCodes> borders{};
  for (std::size_t i = 0; i + 1 < kCodes; ++i) borders[i] = (values[i] + values[i + 1]) / 2;
  if (!is_signed && values[0] == 0) borders[0] = 0;
  return borders;  // the last is none
}

}  // namespace vramfit
