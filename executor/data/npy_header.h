// The header of a NumPy .npy file (NEP 1: A Simple File Format for NumPy Arrays).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

/// How integers lie in a token file: little endian, two's complement when signed.
struct IntegerFormat {
  int bytes = 2;  // 1, 2, 4 or 8
  bool is_signed = false;
};

struct NpyHeader {
  IntegerFormat format;
  std::vector<std::int64_t> shape;  // one or two dims
  std::int64_t data_offset = 0;     // bytes from the file's start
};

/// Bytes of a header that this reads at most.
inline constexpr std::int64_t kLargestNpyHeader = std::int64_t{1} << 16;

/// Reads the first bytes of a file (kLargestNpyHeader, or all of a shorter file). Throws InputError, prefixed with
/// `where`, for anything but a C-ordered array of integers in one or two dims.
NpyHeader parse_npy_header(std::string_view start, const std::string& where);

}  // namespace vramfit
