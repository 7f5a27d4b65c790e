#include "program/ops/product.h"

#include <doctest/doctest.h>

#include <random>

namespace vramfit {

namespace {

std::int64_t packed(const ProductShape& shape) {
  const Packing packing = packing_of(shape);
  return (packing.rows + packing.columns) * packing.inner / 2;
}

}  // namespace

TEST_CASE("a product's scratch holds its packed factors, and those of every product that is smaller in any dimension") {
  std::mt19937_64 random(7);
  const auto draw = [&](std::int64_t most) { return static_cast<std::int64_t>(random() % most) + 1; };
  for (int i = 0; i < 20000; ++i) {
    const ProductShape shape{draw(5000), draw(5000), draw(i % 2 == 0 ? 3000 : 300000), true};
    const ProductShape smaller{draw(shape.rows), draw(shape.columns), draw(shape.inner), i % 3 == 0};
    CAPTURE(shape.inner);
    CAPTURE(smaller.inner);
    REQUIRE(packed(shape) <= product_elements(shape));
    REQUIRE(product_elements(smaller) <= product_elements(shape));
  }
}

TEST_CASE("a factor that is read as it lies takes no scratch") {
  CHECK(packing_of({1024, 576, 576, false}).rows == 0);
  CHECK(packing_of({1024, 576, 576, true}).rows == 1024);
  CHECK(packing_of({1024, 576, 577, false}).rows == 1024);  // pairs of an odd row don't end with it
  CHECK(packing_of({1024, 576, 577, false}).inner == 578);
}

}  // namespace vramfit
