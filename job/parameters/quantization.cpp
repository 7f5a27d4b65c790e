#include "job/parameters/quantization.h"

#include <algorithm>

namespace vramfit {

namespace {

Bytes bytes_of(std::int64_t count, std::int64_t bits) { return Bytes{ceil_div(checked_mul(count, bits), 8)}; }

}  // namespace

const Quantization* quantization_named(std::string_view name) {
  const auto* const row = std::ranges::find(kQuantizations, name, &Quantization::name);
  return row == kQuantizations.end() ? nullptr : row;
}

Bytes quantized_bytes(const Quantization& format, std::int64_t rows, std::int64_t row_elements) {
  const std::int64_t elements = checked_mul(rows, row_elements);
  const std::int64_t scales = format.block == 0 ? rows : ceil_div(elements, format.block);
  Bytes bytes = bytes_of(elements, format.code) + bytes_of(scales, format.scale);
  if (format.scale_block > 0) bytes += bytes_of(ceil_div(scales, format.scale_block), format.scale_scale);
  return bytes + bytes_of(1, format.offset);
}

}  // namespace vramfit
