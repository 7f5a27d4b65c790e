// Scratch of a matrix product on CPU whose factors have 16 bits, or whose result isn't fp32. Both the rules and the
// kernels take their sizes from here.
#pragma once

#include <cstdint>

namespace vramfit {

/// out [rows, columns] = a [rows, inner] b [inner, columns].
struct ProductShape {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool left_transposed = false;  // a lies as [inner, rows]
};

/// Where the CPU has no bf16 kernels, results that aren't fp32 are computed in fp32 blocks of at most this size, then
/// rounded.
inline constexpr std::int64_t kProductRows = 512, kProductColumns = 2048;

/// Where it has them, the factors are copied into the order in which the kernels read them: b, and a unless its rows
/// lie as they are needed. Multiples of a tile are copied at a time, at most 2^20 elements if that is more than a tile.
inline constexpr std::int64_t kProductTile = 64;
struct Packing {
  std::int64_t inner = 0;    // rounded up to pairs
  std::int64_t rows = 0;     // of a; 0: a is read in place
  std::int64_t columns = 0;  // of b
};
Packing packing_of(const ProductShape& shape);

/// Floats that hold either of the two, so that the bytes of a step don't depend on the CPU that runs it.
std::int64_t product_elements(const ProductShape& shape);

}  // namespace vramfit
