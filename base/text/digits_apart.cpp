#include "base/text/digits_apart.h"

namespace vramfit {

namespace {
constexpr int kMostDigits = 10;  // a byte is 9.3e-10 GiB
}

int digits_apart(Bytes a, Bytes b, int digits) {
  if (a == b) return digits;
  while (digits < kMostDigits && format_gib(a, digits) == format_gib(b, digits)) ++digits;
  return digits;
}

}  // namespace vramfit
