// Byte counts and the checked integer arithmetic that every size goes through.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace vramfit {

/// Throws InputError "size overflows 64 bits".
[[noreturn]] void size_overflows();

/// a * b and a + b of non-negative sizes; throw InputError "size overflows 64 bits" instead of wrapping. Here, because
/// replays and programs add up millions of sizes.
inline std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) size_overflows();
  return product;
}
inline std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) size_overflows();
  return sum;
}

/// Smallest integer >= a / b; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Smallest multiple of `step` that is >= a; checked.
inline std::int64_t round_up(std::int64_t a, std::int64_t step) { return checked_mul(ceil_div(a, step), step); }

/// A number of bytes. Never mixes with element counts: there is no Bytes * Bytes.
struct Bytes {
  std::int64_t n = 0;
  constexpr auto operator<=>(const Bytes&) const = default;
};

inline Bytes operator+(Bytes a, Bytes b) { return Bytes{checked_add(a.n, b.n)}; }
inline Bytes operator-(Bytes a, Bytes b) {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(a.n, b.n, &difference)) size_overflows();
  return Bytes{difference};
}
inline Bytes operator*(std::int64_t count, Bytes each) { return Bytes{checked_mul(count, each.n)}; }
inline Bytes& operator+=(Bytes& a, Bytes b) { return a = a + b; }
inline Bytes& operator-=(Bytes& a, Bytes b) { return a = a - b; }
inline Bytes round_up(Bytes a, Bytes step) { return Bytes{round_up(a.n, step.n)}; }

inline constexpr Bytes kKiB{std::int64_t{1} << 10};
inline constexpr Bytes kMiB{std::int64_t{1} << 20};
inline constexpr Bytes kGiB{std::int64_t{1} << 30};

/// Gibibytes (2^30 bytes), rounded to a double: for printing, never for arithmetic on sizes.
constexpr double gib_of(Bytes bytes) { return static_cast<double>(bytes.n) / static_cast<double>(kGiB.n); }

/// "83.21 GiB": always GiB (2^30), `digits` after the point.
std::string format_gib(Bytes bytes, int digits = 2);

/// "1.50 GiB", "12.00 MiB", "3.25 KiB", "17 bytes": the largest unit of which there is at least one.
std::string format_size(Bytes bytes);

}  // namespace vramfit
