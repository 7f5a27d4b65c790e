#include "executor/checkpoint/stored_numbers.h"

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

}  // namespace vramfit
