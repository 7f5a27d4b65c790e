// Matrices in codes of few bits: made from fp32 on the host, made whole on CPU ranks and GPUs. Codes and scales are
// those of bitsandbytes 0.50.2 (functional.py: quantize_4bit, quantize_blockwise, int8_vectorwise_quant), of FP8 those
// of torchao.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/ops/code_values.h"
#include "job/parameters/quantization.h"
#include "program/stages/quantized_parts.h"

namespace vramfit {

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

/// Codes and scales of rows in FP8.
void encode_e4m3_rows(std::span<const float> values, std::int64_t columns, std::uint8_t* codes, float* scales);
/// What `stored` has of a trained matrix: codes and scales of its masters in fp32 or bf16, both on the host.
void encode_rows(const QuantizedRows& matrix, const at::Tensor& values, at::Tensor& stored);

/// `into`: [capacity * row elements] of fp32, bf16 or fp16; padding becomes zeros. On CPU without scratch.
void dequantize_on_cpu(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into);
/// By LibTorch's functions, on the device of its tensors; `scratch`: fp32, DequantizeScratch::end numbers.
void dequantize_by_calls(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into,
                         const at::Tensor& scratch);
/// By an own CUDA kernel (executor/kernels), without scratch.
void dequantize_by_kernel(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into);

}  // namespace vramfit
