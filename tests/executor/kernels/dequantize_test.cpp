// Matrices in codes, made whole by the kernel, and by LibTorch's functions, beside what CPU ranks make of them.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "executor/ops/quantized_torch.h"
#include "tests/executor/kernels/kernel_place_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

namespace {

struct Shape {
  std::int64_t capacity, rows, columns;
};
/// Whole blocks; with padding; odd; codes that begin at odd addresses; of less than a block; none.
const std::vector<Shape> kShapes{{96, 96, 256}, {40, 37, 64}, {7, 7, 11}, {33, 31, 100},
                                 {3, 2, 5},     {1, 1, 1},    {4, 0, 8}};
const std::vector<Shape> kManyElements{{2500, 2490, 4096}, {1000, 1000, 11'003}};

at::Tensor stored_of(const QuantizedRows& matrix) {
  const std::int64_t elements = matrix.elements();
  const at::Tensor values = random_tensor({elements}, 1) * at::exp(random_tensor({elements}, 2) * 0.5);
  at::Tensor stored = at::zeros({quantized_bytes(matrix.format, matrix.capacity, matrix.row_elements).n}, at::kByte);
  RowsQuantizer quantizer(matrix, {stored.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(stored.numel())});
  quantizer.add({values.const_data_ptr<float>(), static_cast<std::size_t>(elements)});
  const std::int64_t scales = scales_of(matrix.format, elements, matrix.row_elements);
  quantizer.finish(scales > 0 ? static_cast<float>(quantizer.sum_of_scales() / static_cast<double>(scales)) : 0.0F);
  return stored;
}

at::Tensor whole_by_kernel(const QuantizedRows& matrix, const at::Tensor& stored, at::ScalarType type, bool backwards) {
  const PlacedKernels kernels(backwards);
  at::Tensor into = placed(at::full({matrix.capacity * matrix.row_elements}, 7, type));
  dequantize_by_kernel(matrix, stored, into);
  return into.cpu();
}

at::Tensor whole_by_calls(const QuantizedRows& matrix, const at::Tensor& stored, at::ScalarType type) {
  at::Tensor into = placed(at::full({matrix.capacity * matrix.row_elements}, 7, type));
  const DequantizeScratch scratch(matrix.format, matrix.capacity, matrix.row_elements);
  dequantize_by_calls(matrix, stored, into, placed(at::full({scratch.end}, NAN)));
  return into.cpu();
}

}  // namespace

TEST_CASE("a kernel and CPU ranks make the same numbers of codes, and zeros of padding") {
  for (const char* format : {"nf4", "nf4-double", "int8", "fp8"}) {
    for (const Shape& shape : cases_of_place(kShapes, kManyElements)) {
      const QuantizedRows matrix{.format = *quantization_named(format),
                                 .capacity = shape.capacity,
                                 .rows = shape.rows,
                                 .row_elements = shape.columns};
      const at::Tensor stored = stored_of(matrix), there = placed(stored);
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        CAPTURE(format);
        CAPTURE(shape.rows);
        CAPTURE(shape.columns);
        CAPTURE(static_cast<int>(type));
        at::Tensor expected = at::full({shape.capacity * shape.columns}, 7, type);
        dequantize_on_cpu(matrix, stored, expected);
        CHECK(at::equal(whole_by_kernel(matrix, there, type, false), expected));
        CHECK(at::equal(whole_by_kernel(matrix, there, type, true), expected));
        CHECK(at::equal(whole_by_calls(matrix, there, type), expected));
      }
    }
  }
}

}  // namespace vramfit::testing
