// Matrices in codes of few bits: made from fp32 on the host, made whole on CPU ranks and GPUs. Codes and scales are
// those of bitsandbytes 0.50.2 (functional.py: quantize_4bit, quantize_blockwise, int8_vectorwise_quant).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "job/quantization.h"
#include "program/stages/quantized_parts.h"

namespace vramfit {

/// NormalFloat of 4 bits, ascending (Dettmers et al. 2023, arXiv:2305.14314, appendix E).
inline constexpr std::array<float, 16> kNormalFloats{-1.0F,
                                                     -0.6961928009986877F,
                                                     -0.5250730514526367F,
                                                     -0.39491748809814453F,
                                                     -0.28444138169288635F,
                                                     -0.18477343022823334F,
                                                     -0.09105003625154495F,
                                                     0.0F,
                                                     0.07958029955625534F,
                                                     0.16093020141124725F,
                                                     0.24611230194568634F,
                                                     0.33791524171829224F,
                                                     0.44070982933044434F,
                                                     0.5626170039176941F,
                                                     0.7229568362236023F,
                                                     1.0F};
/// What scales of 8 bits stand for, ascending: the dynamic map with a sign (executor/optimizers/dynamic_map.h).
const std::array<float, 256>& scale_map();

/// A rank's rows of a matrix: what its storage holds of it, as QuantizedParts says.
struct QuantizedRows {
  const Quantization& format;
  std::int64_t capacity = 0;  // rows that there is room for; those beyond `rows` are padding
  std::int64_t rows = 0;
  std::int64_t row_elements = 0;

  std::int64_t elements() const { return rows * row_elements; }
  QuantizedParts parts() const { return quantized_parts(format, capacity, row_elements); }
};

/// Writes codes while rows come, and scales when all are there. On the host; of scales of 8 bits it keeps those of 32
/// bits until then.
class RowsQuantizer {
 public:
  /// `stored`: the bytes of QuantizedParts, which are zeros; it must outlive this.
  RowsQuantizer(const QuantizedRows& matrix, std::span<std::uint8_t> stored);

  /// Rows that `add` may be given at once, but for the last: whole blocks.
  std::int64_t row_step() const;
  /// The next elements.
  void add(std::span<const float> values);
  /// Of all rows that were added, as they are before they have 8 bits.
  double sum_of_scales() const;
  /// With scales of 8 bits: takes `mean` from each, and writes them. Others are there already.
  void finish(float mean);

 private:
  QuantizedRows matrix_;
  QuantizedParts parts_;
  std::span<std::uint8_t> stored_;
  std::vector<float> wide_scales_;
  std::span<float> scales_;  // those, or what is stored
  std::int64_t done_ = 0;    // elements
};

/// `into`: [capacity * row elements] of fp32, bf16 or fp16; padding becomes zeros. On CPU without scratch.
void dequantize_on_cpu(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into);
/// By LibTorch's functions, on the device of its tensors; `scratch`: fp32, DequantizeScratch::end numbers.
void dequantize_by_calls(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into,
                         const at::Tensor& scratch);

}  // namespace vramfit
