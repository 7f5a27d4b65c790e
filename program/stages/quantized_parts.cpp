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

namespace {

bool has_codes(const Unit& unit) {
  const auto has_some = [](const UnitStorage& s) { return s.quantization != nullptr; };
  return unit.codes_bytes > 0 || std::ranges::any_of(unit.storages, has_some);
}

/// Bytes of the scratch that are written or read for each element. Whole numbers: converted, multiplied by the row's
/// scale and, but for FP8, by a constant, and read by what rounds them. Places in a table: an index of 32 bits for two
/// elements, what it finds, multiplied by the block's scale, and read.
std::int64_t scratch_traffic(const Quantization& format) {
  constexpr std::int64_t kFp32 = 4, kIndexOfOne = 2;
  switch (format.kind) {
    case CodeKind::e4m3:
      return kFp32 + 2 * kFp32 + kFp32;
    case CodeKind::integer:
      return kFp32 + 2 * kFp32 + 2 * kFp32 + kFp32;
    case CodeKind::normal_float:
      break;
  }
  return kIndexOfOne + kIndexOfOne + kFp32 + 2 * kFp32 + kFp32;
}

std::int64_t calls_of_chunk(const Quantization& format) {
  constexpr std::int64_t kOfNumbers = 4, kOfScales = 4, kOfRows = 3, kByConstant = 1;
  if (format.block == 0) return kOfRows + (format.kind == CodeKind::integer ? kByConstant : 0);
  return kOfNumbers + (format.scale_block > 0 ? kOfScales : 0);
}

}  // namespace

DequantizeTraffic dequantize_traffic(const Unit& unit) {
  DequantizeTraffic calls;
  if (!has_codes(unit)) return calls;
  for (const UnitParameter& p : unit.parameters) {
    const Quantization* const format = codes_format(p);
    if (format == nullptr) continue;
    const std::int64_t elements = checked_mul(p.rows_per_rank, p.row_elements);
    const std::int64_t chunk = DequantizeScratch(*format, p.rows_per_rank, p.row_elements).chunk;
    const std::int64_t tables = format->block == 0 ? 0 : 1;
    if (chunk > 0) calls.launches += tables + checked_mul(ceil_div(elements, chunk), calls_of_chunk(*format));
    calls.bytes += Bytes{checked_mul(elements, scratch_traffic(*format))};
  }
  return calls;
}

std::int64_t dequantize_scratch(const Unit& unit) {
  std::int64_t most = 0;
  if (!has_codes(unit)) return most;
  for (const UnitParameter& p : unit.parameters) {
    const Quantization* const format = codes_format(p);
    if (format == nullptr) continue;
    most = std::max(most, DequantizeScratch(*format, p.rows_per_rank, p.row_elements).end);
  }
  return most;
}

}  // namespace vramfit
