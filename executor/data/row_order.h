// The order in which rows are read: a permutation per seed and epoch, computed row by row without storing it.
#pragma once

#include <cstdint>

namespace vramfit {

/// Where row `index` of the data order lies in the files. Row index / rows is the epoch; each epoch is a permutation
/// of 0 .. rows - 1 of its own: a four-round Feistel network over the next power of four, walked until it lands below
/// `rows` (Black, Rogaway: Ciphers with Arbitrary Finite Domains, CT-RSA 2002). index >= 0, rows > 0.
std::int64_t file_row(std::int64_t index, std::int64_t rows, std::uint64_t seed);

}  // namespace vramfit
