#include "base/numbers/mix_bits.h"

#include <doctest/doctest.h>

namespace vramfit {

TEST_CASE("FNV-1a gives the values that its authors published") {
  CHECK(fnv1a("") == 0xcbf29ce484222325U);
  CHECK(fnv1a("a") == 0xaf63dc4c8601ec8cU);
  CHECK(fnv1a("foobar") == 0x85944171f73967e8U);
  CHECK(fnv1a("bar", fnv1a("foo")) == fnv1a("foobar"));
}

}  // namespace vramfit
