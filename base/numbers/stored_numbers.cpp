#include "base/numbers/stored_numbers.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace vramfit {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little endian");

float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16U); }

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15) and 10 fraction bits.
float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000U) << 16U, exponent = (bits >> 10U) & 0x1FU, fraction = bits & 0x3FFU;
  if (exponent == 0) {  // zero and subnormal: fraction * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 0x1F ? 0xFFU : exponent + 112;  // infinity and NaN; else 127 - 15 more
  return std::bit_cast<float>(sign | wide << 23U | fraction << 13U);
}

// Half of the unit that is dropped is added, less the smallest step where the last bit that stays is even.
std::uint16_t to_bf16(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  if (std::isnan(number)) return static_cast<std::uint16_t>(bits >> 16U | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U);
}

std::uint16_t to_f16(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t sign = bits >> 16U & 0x8000U, magnitude = bits & 0x7FFFFFFFU;
  if (std::isnan(number)) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (std::abs(number) >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7C00U);  // half way beyond the largest
  if (std::abs(number) < 0x1p-14F) {                                                    // subnormal: units of 2^-24
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(std::abs(number) * 0x1p24F)));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + (magnitude >> 13U & 1U);
  return static_cast<std::uint16_t>(sign | (rounded - (112U << 23U)) >> 13U);
}

}  // namespace

std::optional<StoredFloat> stored_float(std::string_view name) {
  if (name == "F32") return StoredFloat::f32;
  if (name == "BF16") return StoredFloat::bf16;
  if (name == "F16") return StoredFloat::f16;
  return std::nullopt;
}

std::int64_t stored_bytes(StoredFloat type) { return type == StoredFloat::f32 ? 4 : 2; }

void widen_numbers(const StoredNumbers& numbers, std::int64_t first, std::span<float> into) {
  const char* from = numbers.data + first * stored_bytes(numbers.type);
  if (numbers.type == StoredFloat::f32) {
    std::memcpy(into.data(), from, into.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < into.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    into[i] = numbers.type == StoredFloat::bf16 ? from_bf16(bits) : from_f16(bits);
  }
}

void narrow_numbers(std::span<const float> numbers, StoredFloat type, char* into) {
  if (type == StoredFloat::f32) {
    std::memcpy(into, numbers.data(), numbers.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint16_t bits = type == StoredFloat::bf16 ? to_bf16(numbers[i]) : to_f16(numbers[i]);
    std::memcpy(into + 2 * i, &bits, 2);
  }
}

}  // namespace vramfit
