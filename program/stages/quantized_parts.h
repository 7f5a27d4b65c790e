// Where codes and scales of a quantized matrix lie in a rank's storage, and what a GPU works in to make it whole.
#pragma once

#include <cstdint>

#include "job/parameters/quantization.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// Of rows_per_rank rows: bytes from the parameter's start, which add up to quantized_bytes. Numbers of 32 bits come
/// first, as they have to be aligned.
struct QuantizedParts {
  std::int64_t scales = 0;        // how many: one for each block, or row
  std::int64_t scale_scales = 0;  // how many, from byte 0 on; 0: scales have 32 bits
  std::int64_t offset_begin = 0;  // only with scale_scales
  std::int64_t scales_begin = 0;
  std::int64_t codes_begin = 0;
};
QuantizedParts quantized_parts(const Quantization& format, std::int64_t rows, std::int64_t row_elements);

/// Scales that `elements` in rows of `row_elements` have.
std::int64_t scales_of(const Quantization& format, std::int64_t elements, std::int64_t row_elements);

/// On GPUs a matrix is made whole by LibTorch's functions, this many elements at a time. In numbers of 32 bits from the
/// start of the scratch, for a matrix of `rows` rows.
struct DequantizeScratch {
  static constexpr std::int64_t kMostElements = std::int64_t{1} << 21;  // whole blocks of scales
  static constexpr std::int64_t kPairs = 512;                           // two elements for each value of a byte
  static constexpr std::int64_t kScaleMap = 256;                        // values of scales of 8 bits

  DequantizeScratch(const Quantization& format, std::int64_t rows, std::int64_t row_elements);

  std::int64_t chunk = 0;  // elements; of a format with a scale for each row whole rows, at least one
  std::int64_t indices = 0, scales = 0, tables = 0, end = 0;  // chunk elements in fp32 come first
};

/// Of the unit's quantized matrices, the largest; 0 without any.
std::int64_t dequantize_scratch(const Unit& unit);

/// What LibTorch's functions do to make them whole (executor/ops/quantized_calls.cpp), beyond reading each code and
/// writing each number once.
struct DequantizeTraffic {
  std::int64_t launches = 0;
  Bytes bytes{};  // read and written in the scratch
};
DequantizeTraffic dequantize_traffic(const Unit& unit);

}  // namespace vramfit
