#include "program/ops/product.h"

#include <algorithm>

#include "base/text/units.h"

namespace vramfit {

namespace {

constexpr std::int64_t kPackedElements = std::int64_t{1} << 20;

/// Rows of a, or columns of b, that are copied at a time.
std::int64_t packed_at_a_time(std::int64_t count, std::int64_t inner) {
  const std::int64_t tiles = std::max<std::int64_t>(1, kPackedElements / inner / kProductTile);
  return std::min(ceil_div(count, kProductTile), tiles) * kProductTile;
}

/// What they take. A shorter product never takes more: the last chunk of a loss has the scratch of the others.
std::int64_t packed_elements(std::int64_t count, std::int64_t inner) {
  const std::int64_t most = std::max(kPackedElements, checked_mul(kProductTile, inner));
  return std::min(checked_mul(round_up(count, kProductTile), inner), most);
}

}  // namespace

Packing packing_of(const ProductShape& shape) {
  Packing packing{.inner = std::max<std::int64_t>(2, round_up(shape.inner, 2))};
  // The kernels read a in pairs along `inner`.
  const bool copies_left = shape.left_transposed || shape.inner % 2 != 0;
  if (copies_left) packing.rows = packed_at_a_time(shape.rows, packing.inner);
  packing.columns = packed_at_a_time(shape.columns, packing.inner);
  return packing;
}

std::int64_t product_elements(const ProductShape& shape) {
  const Packing packing = packing_of(shape);
  const std::int64_t left = packing.rows == 0 ? 0 : packed_elements(shape.rows, packing.inner);
  const std::int64_t right = packed_elements(shape.columns, packing.inner);
  return std::max(std::min(shape.rows, kProductRows) * std::min(shape.columns, kProductColumns),
                  ceil_div(left + right, 2));
}

}  // namespace vramfit
