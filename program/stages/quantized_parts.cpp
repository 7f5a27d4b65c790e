#include "program/stages/quantized_parts.h"

#include <algorithm>

namespace vramfit {

std::int64_t scales_of(const Quantization& format, std::int64_t elements, std::int64_t row_elements) {
  return ceil_div(elements, format.block == 0 ? std::max<std::int64_t>(row_elements, 1) : format.block);
}

QuantizedParts quantized_parts(const Quantization& format, std::int64_t rows, std::int64_t row_elements) {
  constexpr std::int64_t kNumber = 4, kByte = 8;  // bytes of 32 bits; bits of a byte
  QuantizedParts parts;
  parts.scales = scales_of(format, checked_mul(rows, row_elements), row_elements);
  if (format.scale_block > 0) {
    parts.scale_scales = ceil_div(parts.scales, format.scale_block);
    parts.offset_begin = parts.scale_scales * kNumber;
    parts.scales_begin = parts.offset_begin + kNumber;
  }
  parts.codes_begin = parts.scales_begin + parts.scales * format.scale / kByte;
  return parts;
}

DequantizeScratch::DequantizeScratch(const Quantization& format, std::int64_t rows, std::int64_t row_elements) {
  const std::int64_t elements = checked_mul(rows, row_elements);
  if (format.block == 0) {
    const std::int64_t most = std::max<std::int64_t>(kMostElements / std::max<std::int64_t>(row_elements, 1), 1);
    chunk = std::min(most, rows) * row_elements;
    indices = scales = tables = end = chunk;
    return;
  }
  chunk = std::min(round_up(elements, 2), kMostElements);
  indices = chunk;
  scales = indices + chunk / 2;
  tables = scales + ceil_div(chunk, format.block);
  end = tables + kPairs + (format.scale_block > 0 ? kScaleMap : 0);
}

std::int64_t dequantize_scratch(const Unit& unit) {
  std::int64_t most = 0;
  const auto is_plain = [](const UnitStorage& s) { return s.quantization == nullptr; };
  if (unit.codes_bytes == 0 && std::ranges::all_of(unit.storages, is_plain)) return most;
  for (const UnitParameter& p : unit.parameters) {
    const Quantization* const format = codes_format(p);
    if (format == nullptr) continue;
    most = std::max(most, DequantizeScratch(*format, p.rows_per_rank, p.row_elements).end);
  }
  return most;
}

}  // namespace vramfit
