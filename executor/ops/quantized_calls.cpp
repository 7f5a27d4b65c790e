// What a GPU does with codes: LibTorch's functions, a chunk at a time, in scratch that the program counts.
#include <ATen/ops/index_select.h>

#include <algorithm>

#include "executor/ops/host_table_torch.h"
#include "executor/ops/quantized_torch.h"

namespace vramfit {

namespace {

/// The two numbers that a byte stands for, for each byte, then what scales of 8 bits stand for.
std::array<float, DequantizeScratch::kPairs + DequantizeScratch::kScaleMap> tables() {
  std::array<float, DequantizeScratch::kPairs + DequantizeScratch::kScaleMap> numbers{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    numbers[2 * byte] = kNormalFloats[byte >> 4U];
    numbers[2 * byte + 1] = kNormalFloats[byte & 0xFU];
  }
  std::ranges::copy(scale_map(), numbers.begin() + DequantizeScratch::kPairs);
  return numbers;
}

class DequantizeCalls {
 public:
  DequantizeCalls(const QuantizedRows& matrix, const at::Tensor& stored, const at::Tensor& scratch)
      : matrix_(matrix),
        parts_(matrix.parts()),
        stored_(stored),
        scratch_(scratch),
        places_(matrix.format, matrix.capacity, matrix.row_elements) {}

  void run(at::Tensor& into) {
    load_tables();
    for (std::int64_t first = 0; first < matrix_.elements(); first += places_.chunk) {
      const std::int64_t count = std::min(places_.chunk, matrix_.elements() - first);
      const at::Tensor values = matrix_.format.block == 0 ? rows(first, count) : blocks(first, count);
      at::Tensor to = into.narrow(0, first, count);
      to.copy_(values);
    }
    const std::int64_t padding = into.numel() - matrix_.elements();
    if (padding > 0) into.narrow(0, matrix_.elements(), padding).zero_();
  }

 private:
  at::Tensor part(std::int64_t begin, std::int64_t count) const { return scratch_.narrow(0, begin, count); }
  at::Tensor indices(std::int64_t count) const { return part(places_.indices, count).view(at::kInt); }
  at::Tensor bytes(std::int64_t begin, std::int64_t count) const { return stored_.narrow(0, begin, count); }
  at::Tensor numbers(std::int64_t begin, std::int64_t count) const { return bytes(begin, 4 * count).view(at::kFloat); }

  void load_tables() const {
    static const auto kTables = tables();
    if (matrix_.format.block == 0) return;
    const std::int64_t count = places_.end - places_.tables;
    part(places_.tables, count).copy_(host_table({kTables.data(), static_cast<std::size_t>(count)}), true);
  }

  at::Tensor rows(std::int64_t first, std::int64_t count) const {
    at::Tensor values = part(0, count);
    const bool is_e4m3 = matrix_.format.kind == CodeKind::e4m3;
    values.copy_(bytes(parts_.codes_begin + first, count).view(is_e4m3 ? at::kFloat8_e4m3fn : at::kChar));
    const std::int64_t row = first / matrix_.row_elements, many = count / matrix_.row_elements;
    values.view({many, -1}).mul_(numbers(4 * row, many).unsqueeze(1));
    if (!is_e4m3) values.mul_(kOneOfInt8);
    return values;
  }

  at::Tensor blocks(std::int64_t first, std::int64_t count) const {
    const std::int64_t pairs = ceil_div(count, 2);
    at::Tensor index = indices(pairs), both = part(0, 2 * pairs).view({pairs, 2});
    index.copy_(bytes(parts_.codes_begin + first / 2, pairs));
    at::index_select_out(both, part(places_.tables, DequantizeScratch::kPairs).view({-1, 2}), 0, index);
    at::Tensor values = part(0, count);
    const std::int64_t block = matrix_.format.block;
    multiply(values, scales(first / block, ceil_div(count, block)), block);
    return values;
  }

  at::Tensor scales(std::int64_t first, std::int64_t count) const {
    if (parts_.scale_scales == 0) return numbers(4 * first, count);
    at::Tensor index = indices(count), values = part(places_.scales, count);
    index.copy_(bytes(parts_.scales_begin + first, count));
    const at::Tensor map = part(places_.tables + DequantizeScratch::kPairs, DequantizeScratch::kScaleMap);
    at::index_select_out(values, map, 0, index);
    const std::int64_t block = matrix_.format.scale_block;
    multiply(values, numbers(4 * (first / block), ceil_div(count, block)), block);
    return values.add_(numbers(parts_.offset_begin, 1));
  }

  /// Each `block` numbers by one; the last may be fewer.
  static void multiply(const at::Tensor& values, const at::Tensor& by, std::int64_t block) {
    const std::int64_t whole = values.numel() / block, rest = values.numel() % block;
    if (whole > 0) values.narrow(0, 0, whole * block).view({whole, block}).mul_(by.narrow(0, 0, whole).unsqueeze(1));
    if (rest > 0) values.narrow(0, whole * block, rest).mul_(by.narrow(0, whole, 1));
  }

  const QuantizedRows& matrix_;
  QuantizedParts parts_;
  const at::Tensor &stored_, &scratch_;
  DequantizeScratch places_;
};

}  // namespace

void dequantize_by_calls(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into,
                         const at::Tensor& scratch) {
  DequantizeCalls(matrix, stored, scratch).run(into);
}

}  // namespace vramfit
