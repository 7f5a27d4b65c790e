#include <ATen/native/CPUBlas.h>

#include <array>
#include <cstring>

#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/product.h"

// bf16 products by oneDNN's brgemm, as LibTorch exports it: tiles of 64 x 64 of the result, each summed in fp32 over
// the whole inner dimension and stored while it is in cache. Every element is summed in the same order whatever the
// number of threads.
namespace vramfit::kernels {

namespace {

constexpr std::int64_t kTile = kProductTile;
constexpr std::int64_t kInner = 1024;      // at a time: a panel's 128 KiB stay in the second-level cache
constexpr std::int64_t kPairsAtOnce = 16;  // a cache line of pairs

/// Two bf16 numbers that follow each other along the inner dimension.
using Pair = std::uint32_t;

const std::uint16_t* element(const Matrix& m, std::int64_t row, std::int64_t column) {
  const std::int64_t at = m.transposed ? column * m.stride + row : row * m.stride + column;
  return static_cast<const std::uint16_t*>(m.data) + at;
}

Pair read_pair(const std::uint16_t* from) {
  Pair pair = 0;
  std::memcpy(&pair, from, sizeof pair);
  return pair;
}

/// A panel's pairs of rows [2 first, 2 (first + count)) of b, for columns that lie one after the other: [count][kTile].
void interleave_rows(const Matrix& b, std::int64_t first, std::int64_t count, Pair* to) {
  for (std::int64_t p = 0; p < count; ++p, to += kTile) {
    const std::int64_t row = 2 * (first + p);
    const std::uint16_t* low = element(b, row, 0);
    const std::uint16_t* high = row + 1 < b.rows ? element(b, row + 1, 0) : nullptr;
    for (std::int64_t c = 0; c < b.columns; ++c) {
      to[c] = low[c] | static_cast<Pair>(high == nullptr ? 0 : high[c]) << 16;
    }
    std::fill(to + b.columns, to + kTile, 0);
  }
}

/// The same for columns whose rows lie one after the other.
void transpose_pairs(const Matrix& b, std::int64_t first, std::int64_t count, Pair* to) {
  const std::int64_t whole = std::min(count, b.rows / 2 - first);
  for (std::int64_t c = 0; c < b.columns; ++c) {
    const std::uint16_t* from = element(b, 2 * first, c);
    for (std::int64_t p = 0; p < whole; ++p) to[p * kTile + c] = read_pair(from + 2 * p);
    if (whole < count) to[whole * kTile + c] = from[2 * whole];
  }
  for (std::int64_t p = 0; p < count; ++p) std::fill(to + p * kTile + b.columns, to + (p + 1) * kTile, 0);
}

/// f(tile, first pair, pairs) for all tiles of `count` rows or columns and `inner` elements, on all threads.
template <typename F>
void for_pairs(std::int64_t count, std::int64_t inner, const F& f) {
  const std::int64_t steps = ceil_div(inner / 2, kPairsAtOnce), tiles = ceil_div(count, kTile);
  at::parallel_for(0, tiles * steps, kGrain / (kTile * kPairsAtOnce), [&](std::int64_t begin, std::int64_t end) {
    on_widest([=] {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t pair = i % steps * kPairsAtOnce;
        f(i / steps, pair, std::min(kPairsAtOnce, inner / 2 - pair));
      }
    });
  });
}

/// Copies b in panels of 64 columns: for each pair of rows the pairs of its columns.
void pack_right(const Matrix& b, std::int64_t inner, Pair* to) {
  for_pairs(b.columns, inner, [=](std::int64_t tile, std::int64_t first, std::int64_t count) {
    const std::int64_t column = tile * kTile;
    const Matrix panel = part(b, 0, b.rows, column, std::min(kTile, b.columns - column));
    Pair* place = to + tile * kTile * (inner / 2) + first * kTile;
    b.transposed ? transpose_pairs(panel, first, count, place) : interleave_rows(panel, first, count, place);
  });
}

/// Copies a row by row.
void pack_left(const Matrix& a, std::int64_t inner, Pair* to) {
  for_pairs(a.rows, inner, [=](std::int64_t tile, std::int64_t first, std::int64_t count) {
    // a's rows as the columns of a panel: what interleaving and transposing give is the panel's transpose.
    const std::int64_t row = tile * kTile;
    const Matrix panel = transpose(part(a, row, std::min(kTile, a.rows - row), 0, a.columns));
    std::array<Pair, kTile * kPairsAtOnce> pairs;
    panel.transposed ? transpose_pairs(panel, first, count, pairs.data())
                     : interleave_rows(panel, first, count, pairs.data());
    for (std::int64_t r = 0; r < panel.columns; ++r) {
      Pair* place = to + (row + r) * (inner / 2) + first;
      for (std::int64_t p = 0; p < count; ++p) place[p] = pairs[static_cast<std::size_t>(p * kTile + r)];
    }
  });
}

/// Factors as the kernels read them.
struct Factors {
  const at::BFloat16* left = nullptr;
  std::int64_t left_stride = 0;
  const at::BFloat16* panels = nullptr;
  std::int64_t inner = 0;
};

void multiply_tile(const Factors& f, std::int64_t rows, float* tile) {
  for (std::int64_t k = 0; k < f.inner; k += kInner) {
    at::native::cpublas::brgemm(rows, kTile, std::min(kInner, f.inner - k), f.left_stride, kTile, kTile, k > 0,
                                f.left + k, f.panels + k * kTile, tile);
  }
}

void multiply_tiles(const Factors& f, const Matrix& out, const Store& store, std::int64_t first_column) {
  const std::int64_t down = ceil_div(out.rows, kTile), across = ceil_div(out.columns, kTile);
  const std::int64_t grain = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / (kTile * kTile * f.inner));
  at::parallel_for(0, down * across, grain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::array<float, kTile * kTile> tile;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i % down * kTile, column = i / down * kTile;
      const Matrix place =
          part(out, row, std::min(kTile, out.rows - row), column, std::min(kTile, out.columns - column));
      Factors here = f;
      here.left += row * f.left_stride;
      here.panels += column * f.inner;
      multiply_tile(here, place.rows, tile.data());
      store_block({.data = tile.data(), .rows = place.rows, .columns = place.columns, .stride = kTile}, place, store,
                  first_column + column);
    }
  });
}

/// CPUs with AMX are Intel's, for which MKL has kernels; oneDNN's haven't been tried there. What the CPU has, oneDNN's
/// environment variables can take away: so a product is tried.
bool try_packed_product() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16") == 0 || at::native::cpublas::could_pack(at::kBFloat16)) return false;
  const std::array<at::BFloat16, 2> left{1, 2};
  std::array<at::BFloat16, 2 * kTile> panel;
  panel.fill(3);
  std::array<float, kTile> sums{};
  try {
    multiply_tile({.left = left.data(), .left_stride = 2, .panels = panel.data(), .inner = 2}, 1, sums.data());
  } catch (const std::exception&) {
    return false;
  }
  return sums.front() == 9 && sums.back() == 9;
#else
  return false;
#endif
}

}  // namespace

bool has_packed_products() {
  static const bool kHas = try_packed_product();
  return kHas;
}

void multiply_packed(const Matrix& a, const Matrix& b, const Matrix& out, const Store& store) {
  const Packing packing = packing_of({out.rows, out.columns, a.columns, a.transposed});
  auto* const right = reinterpret_cast<Pair*>(store.product);
  auto* const left = right + packing.columns * (packing.inner / 2);
  const bool copies_left = packing.rows > 0;
  const std::int64_t rows_at_once = copies_left ? packing.rows : out.rows;
  for (std::int64_t row = 0; row < out.rows; row += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, out.rows - row);
    const Matrix a_rows = part(a, row, rows, 0, a.columns);
    if (copies_left) pack_left(a_rows, packing.inner, left);
    for (std::int64_t column = 0; column < out.columns; column += packing.columns) {
      const std::int64_t columns = std::min(packing.columns, out.columns - column);
      pack_right(part(b, 0, b.rows, column, columns), packing.inner, right);
      const Factors factors{.left = static_cast<const at::BFloat16*>(copies_left ? left : a_rows.data),
                            .left_stride = copies_left ? packing.inner : a.stride,
                            .panels = reinterpret_cast<const at::BFloat16*>(right),
                            .inner = packing.inner};
      multiply_tiles(factors, part(out, row, rows, column, columns), store, column);
    }
  }
}

}  // namespace vramfit::kernels
