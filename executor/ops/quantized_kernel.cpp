// Matrices in codes by an own CUDA kernel, in one pass and without scratch.
#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/quantized_torch.h"

namespace vramfit {

namespace {

cuda::Codes codes_of(CodeKind kind) {
  if (kind == CodeKind::e4m3) return cuda::Codes::e4m3;
  return kind == CodeKind::integer ? cuda::Codes::int8 : cuda::Codes::normal_float;
}

}  // namespace

void dequantize_by_kernel(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into) {
  const QuantizedParts parts = matrix.parts();
  check_launch(require_own_kernels().dequantize({.stored = stored.const_data_ptr<std::uint8_t>(),
                                                 .codes_begin = parts.codes_begin,
                                                 .scales_begin = parts.scales_begin,
                                                 .offset_begin = parts.offset_begin,
                                                 .elements = matrix.elements(),
                                                 .capacity = matrix.capacity * matrix.row_elements,
                                                 .row_elements = matrix.row_elements,
                                                 .codes = codes_of(matrix.format.kind),
                                                 .block = matrix.format.block,
                                                 .scale_block = matrix.format.scale_block,
                                                 .into = into.mutable_data_ptr(),
                                                 .number = number_of(into.scalar_type())},
                                                stream_of(into)));
}

}  // namespace vramfit
