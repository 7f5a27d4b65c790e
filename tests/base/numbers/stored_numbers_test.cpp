#include "base/numbers/stored_numbers.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace vramfit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float rounded(float number, StoredFloat type) {
  std::array<char, 4> bytes{};
  narrow_numbers({&number, 1}, type, bytes.data());
  float back = 0;
  widen_numbers({type, bytes.data(), 1}, 0, {&back, 1});
  return back;
}

float widened(std::uint16_t bits, StoredFloat type) {
  float number = 0;
  widen_numbers({type, reinterpret_cast<const char*>(&bits), 1}, 0, {&number, 1});
  return number;
}

TEST_CASE("each number of 16 bits is written as it was read") {
  for (const StoredFloat type : {StoredFloat::bf16, StoredFloat::f16}) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const float number = widened(static_cast<std::uint16_t>(bits), type);
      const float back = rounded(number, type);
      if (std::isnan(number) ? !std::isnan(back)
                             : std::bit_cast<std::uint32_t>(back) != std::bit_cast<std::uint32_t>(number)) {
        FAIL("bits ", bits, " became ", back);
      }
    }
  }
}

TEST_CASE("what lies between two numbers goes to the nearer one, and from the middle to the even one") {
  for (const StoredFloat type : {StoredFloat::bf16, StoredFloat::f16}) {
    const std::uint32_t finite = type == StoredFloat::bf16 ? 0x7F7F : 0x7BFF;  // the largest
    for (std::uint32_t bits = 0; bits < finite; ++bits) {
      const float low = widened(static_cast<std::uint16_t>(bits), type),
                  high = widened(static_cast<std::uint16_t>(bits + 1), type);
      const float middle = low + (high - low) / 2;
      const float even = bits % 2 == 0 ? low : high;
      const bool is_right = rounded(middle, type) == even && rounded(-middle, type) == -even &&
                            rounded(std::nextafter(middle, low), type) == low &&
                            rounded(std::nextafter(middle, high), type) == high;
      if (!is_right) FAIL("beside bits ", bits);
    }
  }
}

TEST_CASE("what is too large becomes infinite") {
  CHECK(rounded(65519.996F, StoredFloat::f16) == 65504);
  CHECK(rounded(65520, StoredFloat::f16) == kInfinity);
  CHECK(rounded(-1e30F, StoredFloat::f16) == -kInfinity);
  CHECK(rounded(std::numeric_limits<float>::max(), StoredFloat::bf16) == kInfinity);
  CHECK(rounded(0x1p-26F, StoredFloat::f16) == 0);
  CHECK(std::isnan(rounded(std::numeric_limits<float>::quiet_NaN(), StoredFloat::f16)));
}

}  // namespace
}  // namespace vramfit
