// Matrix products on CPU into strided matrices, without LibTorch's allocator: MKL's own entry points, which the wheel's
// libtorch_cpu exports, and for bf16 oneDNN's kernels over factors that are packed here. (at::mm_out of bf16 goes
// through oneDNN's own packing, whose scratchpad depends on its generated kernels. MKL has bf16 kernels for Intel's
// CPUs alone: on others its call converts to fp32 and multiplies with sgemm.)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace vramfit::kernels {

/// A view of rows x columns elements; element (r, c) lies at r * stride + c, or at c * stride + r when transposed.
struct Matrix {
  void* data = nullptr;
  at::ScalarType type = at::kFloat;
  std::int64_t rows = 0, columns = 0, stride = 0;
  bool transposed = false;
};

/// Of a 2-D tensor whose columns are contiguous (row slices and column slices are).
Matrix matrix(const at::Tensor& tensor);
Matrix transpose(Matrix m);
/// `count` rows from `first` on; not of a transposed one.
Matrix row_range(Matrix m, std::int64_t first, std::int64_t count);
/// Any part, also of a transposed one.
Matrix part(Matrix m, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns);

/// How a product is stored: added to what is there; a bias [columns] of the output's type added to each row; multiplied
/// by a factor first, where out isn't fp32.
struct Store {
  bool add = false;
  const void* bias = nullptr;
  float* product = nullptr;  // scratch of product_elements(shape) floats; needed where out isn't fp32
  float factor = 1;
};

/// out = a b, in fp32; a and b have one type, fp32, bf16 or fp16; out isn't transposed.
void multiply(const Matrix& a, const Matrix& b, const Matrix& out, const Store& store);

/// out = alpha a b + beta out, all fp32.
void multiply_f32(float alpha, const Matrix& a, const Matrix& b, float beta, const Matrix& out);

/// Stores a block of fp32 products in its place, `first_column` columns into the output's rows.
void store_block(const Matrix& block, const Matrix& place, const Store& store, std::int64_t first_column);

/// Whether bf16 products go to oneDNN's kernels on this machine.
bool has_packed_products();

/// multiply() of bf16 factors by those kernels; needs the scratch, and at least one column of a.
void multiply_packed(const Matrix& a, const Matrix& b, const Matrix& out, const Store& store);

}  // namespace vramfit::kernels
