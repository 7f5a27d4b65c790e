// Byte counts and the checked integer arithmetic that every size goes through.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace vramfit {

/// a * b and a + b of non-negative sizes; throw InputError "size overflows 64 bits" instead of wrapping.
std::int64_t checked_mul(std::int64_t a, std::int64_t b);
std::int64_t checked_add(std::int64_t a, std::int64_t b);

/// Smallest integer >= a / b; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Smallest multiple of `step` that is >= a; checked.
std::int64_t round_up(std::int64_t a, std::int64_t step);

/// A number of bytes. Never mixes with element counts: there is no Bytes * Bytes.
struct Bytes {
  std::int64_t n = 0;
  constexpr auto operator<=>(const Bytes&) const = default;
};

Bytes operator+(Bytes a, Bytes b);
Bytes operator-(Bytes a, Bytes b);
Bytes operator*(std::int64_t count, Bytes each);
Bytes& operator+=(Bytes& a, Bytes b);
Bytes& operator-=(Bytes& a, Bytes b);
Bytes round_up(Bytes a, Bytes step);

inline constexpr Bytes kKiB{std::int64_t{1} << 10};
inline constexpr Bytes kMiB{std::int64_t{1} << 20};
inline constexpr Bytes kGiB{std::int64_t{1} << 30};

/// "83.21 GiB": always GiB (2^30), `digits` after the point.
std::string format_gib(Bytes bytes, int digits = 2);

/// "1.50 GiB", "12.00 MiB", "3.25 KiB", "17 bytes": the largest unit of which there is at least one.
std::string format_size(Bytes bytes);

}  // namespace vramfit
