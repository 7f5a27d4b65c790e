#include "base/units.h"

#include <fmt/format.h>

#include "base/error.h"

namespace vramfit {
namespace {

[[noreturn]] void overflow() { throw InputError("size overflows 64 bits"); }

}  // namespace

std::int64_t checked_mul(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) overflow();
  return product;
}

std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) overflow();
  return sum;
}

std::int64_t round_up(std::int64_t a, std::int64_t step) { return checked_mul(ceil_div(a, step), step); }

Bytes operator+(Bytes a, Bytes b) { return Bytes{checked_add(a.n, b.n)}; }

Bytes operator-(Bytes a, Bytes b) {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(a.n, b.n, &difference)) overflow();
  return Bytes{difference};
}

Bytes operator*(std::int64_t count, Bytes each) { return Bytes{checked_mul(count, each.n)}; }

Bytes& operator+=(Bytes& a, Bytes b) { return a = a + b; }

Bytes& operator-=(Bytes& a, Bytes b) { return a = a - b; }

Bytes round_up(Bytes a, Bytes step) { return Bytes{round_up(a.n, step.n)}; }

std::string format_gib(Bytes bytes, int digits) {
  return fmt::format("{:.{}f} GiB", static_cast<double>(bytes.n) / static_cast<double>(kGiB.n), digits);
}

std::string format_size(Bytes bytes) {
  const auto in = [&](Bytes unit, const char* name) {
    return fmt::format("{:.2f} {}", static_cast<double>(bytes.n) / static_cast<double>(unit.n), name);
  };
  if (bytes >= kGiB) return in(kGiB, "GiB");
  if (bytes >= kMiB) return in(kMiB, "MiB");
  if (bytes >= kKiB) return in(kKiB, "KiB");
  return fmt::format("{} byte{}", bytes.n, bytes.n == 1 ? "" : "s");
}

}  // namespace vramfit
