#include "base/text/units.h"

#include <doctest/doctest.h>

#include <limits>

#include "base/error.h"
#include "base/text/digits_apart.h"

namespace vramfit {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST_CASE("a product or sum beyond 64 bits throws instead of wrapping") {
  CHECK(checked_mul(kMost / 2, 2) == kMost - 1);
  CHECK_THROWS_AS(checked_mul(kMost / 2 + 1, 2), InputError);
  CHECK_THROWS_AS(checked_add(kMost, 1), InputError);
  CHECK_THROWS_AS(round_up(kMost, 512), InputError);
  CHECK_THROWS_AS(Bytes{kMost} + Bytes{1}, InputError);
  CHECK_THROWS_AS(kMost * Bytes{2}, InputError);
}

TEST_CASE("rounding up leaves a multiple alone and lifts everything else to the next one") {
  CHECK(round_up(0, 512) == 0);
  CHECK(round_up(1, 512) == 512);
  CHECK(round_up(512, 512) == 512);
  CHECK(round_up(Bytes{513}, Bytes{512}) == Bytes{1024});
}

TEST_CASE("bytes are written in GiB of 2^30") {
  CHECK(format_gib(kGiB) == "1.00 GiB");
  CHECK(format_gib(Bytes{89343524864}, 2) == "83.21 GiB");
}

TEST_CASE("two sizes that differ are printed with enough decimals to show it") {
  const auto digits = [](Bytes a, Bytes b) {
    const int n = digits_apart(a, b);
    CHECK((a == b) == (format_gib(a, n) == format_gib(b, n)));
    return n;
  };
  CHECK(digits(2 * kGiB, 3 * kGiB) == 2);
  CHECK(digits(2 * kGiB, 2 * kGiB) == 2);
  CHECK(digits(2 * kGiB, 2 * kGiB + kMiB) == 3);
  CHECK(digits(1'048'576 * kGiB, 1'048'576 * kGiB - Bytes{1}) == 9);
  for (std::int64_t n = 0; n < 2000; ++n) digits(80 * kGiB + Bytes{n * n}, 80 * kGiB + Bytes{n * n + 1});
}

TEST_CASE("a size is told in the largest unit of which there is one") {
  CHECK(format_size(Bytes{0}) == "0 bytes");
  CHECK(format_size(Bytes{1}) == "1 byte");
  CHECK(format_size(Bytes{1023}) == "1023 bytes");
  CHECK(format_size(Bytes{1536}) == "1.50 KiB");
  CHECK(format_size(12 * kMiB) == "12.00 MiB");
  CHECK(format_size(kGiB - kMiB) == "1023.00 MiB");
  CHECK(format_size(80 * kGiB) == "80.00 GiB");
}

}  // namespace vramfit
