#include <algorithm>
#include <climits>
#include <stdexcept>

#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/rules.h"

// BLAS as Fortran calls it, and MKL's 16-bit products into fp32; all with 32-bit sizes.
// NOLINTBEGIN(readability-identifier-naming,google-runtime-int): names that the library gives
extern "C" {
void sgemm_(const char* transa, const char* transb, const int* m, const int* n, const int* k, const float* alpha,
            const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
            const int* ldc);
void cblas_gemm_bf16bf16f32(int layout, int transa, int transb, int m, int n, int k, float alpha, const void* a,
                            int lda, const void* b, int ldb, float beta, float* c, int ldc);
void cblas_gemm_f16f16f32(int layout, int transa, int transb, int m, int n, int k, float alpha, const void* a, int lda,
                          const void* b, int ldb, float beta, float* c, int ldc);
}
// NOLINTEND(readability-identifier-naming,google-runtime-int)

namespace vramfit::kernels {

namespace {

int blas_int(std::int64_t n) {
  if (n > INT_MAX) throw std::logic_error("a matrix has more than 2^31 rows or columns");
  return static_cast<int>(n);
}

int blas_stride(const Matrix& m) {
  return blas_int(std::max({m.stride, m.transposed ? m.rows : m.columns, std::int64_t{1}}));
}

std::int64_t offset(const Matrix& m, std::int64_t row, std::int64_t column) {
  return m.transposed ? column * m.stride + row : row * m.stride + column;
}

/// out (fp32) = a b + beta out.
void product(const Matrix& a, const Matrix& b, float beta, const Matrix& out) {
  if (a.type == at::kFloat) return multiply_f32(1.0F, a, b, beta, out);
  constexpr int kRowMajor = 101, kAsIs = 111, kTransposed = 112;
  auto* const multiply_16_bits = a.type == at::kHalf ? cblas_gemm_f16f16f32 : cblas_gemm_bf16bf16f32;
  multiply_16_bits(kRowMajor, a.transposed ? kTransposed : kAsIs, b.transposed ? kTransposed : kAsIs,
                   blas_int(out.rows), blas_int(out.columns), blas_int(a.columns), 1.0F, a.data, blas_stride(a), b.data,
                   blas_stride(b), beta, static_cast<float*>(out.data), blas_stride(out));
}

template <typename T>
void store_block_as(const Matrix& block, const Matrix& out, const Store& store, std::int64_t first_column) {
  const T* bias = store.bias == nullptr ? nullptr : static_cast<const T*>(store.bias) + first_column;
  parallel_rows(block.rows, block.columns, [&](std::int64_t row) {
    const float* from = static_cast<const float*>(block.data) + row * block.stride;
    T* to = static_cast<T*>(out.data) + row * out.stride;
    if (bias == nullptr) {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t c = 0; c < block.columns; ++c) put(to[c], from[c] * store.factor, store.add);
    } else {
      for (std::int64_t c = 0; c < block.columns; ++c) {
        put(to[c], from[c] * store.factor + static_cast<float>(bias[c]), store.add);
      }
    }
  });
}

void multiply_into_f32(const Matrix& a, const Matrix& b, const Matrix& out, const Store& store) {
  if (store.bias == nullptr) return product(a, b, store.add ? 1.0F : 0.0F, out);
  const auto* bias = static_cast<const float*>(store.bias);
  parallel_rows(out.rows, out.columns, [&](std::int64_t row) {
    float* to = static_cast<float*>(out.data) + row * out.stride;
    for (std::int64_t c = 0; c < out.columns; ++c) put(to[c], bias[c], store.add);
  });
  product(a, b, 1.0F, out);
}

}  // namespace

Matrix matrix(const at::Tensor& tensor) {
  return {.data = tensor.data_ptr(),
          .type = tensor.scalar_type(),
          .rows = tensor.size(0),
          .columns = tensor.size(1),
          .stride = std::max(tensor.stride(0), tensor.size(1))};
}

Matrix transpose(Matrix m) {
  std::swap(m.rows, m.columns);
  m.transposed = !m.transposed;
  return m;
}

Matrix part(Matrix m, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  m.data = static_cast<char*>(m.data) + offset(m, row, column) * static_cast<std::int64_t>(c10::elementSize(m.type));
  m.rows = rows;
  m.columns = columns;
  return m;
}

void store_block(const Matrix& block, const Matrix& place, const Store& store, std::int64_t first_column) {
  with_type(place.type, [&](auto zero) { store_block_as<decltype(zero)>(block, place, store, first_column); });
}

Matrix row_range(Matrix m, std::int64_t first, std::int64_t count) { return part(m, first, count, 0, m.columns); }

void multiply_f32(float alpha, const Matrix& a, const Matrix& b, float beta, const Matrix& out) {
  if (out.rows == 0 || out.columns == 0) return;
  // Row-major out = a b is column-major out^T = b^T a^T.
  const int m = blas_int(out.columns), n = blas_int(out.rows), k = blas_int(a.columns);
  const int ldb = blas_stride(b), lda = blas_stride(a), ldc = blas_stride(out);
  sgemm_(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &m, &n, &k, &alpha, static_cast<const float*>(b.data),
         &ldb, static_cast<const float*>(a.data), &lda, &beta, static_cast<float*>(out.data), &ldc);
}

void multiply(const Matrix& a, const Matrix& b, const Matrix& out, const Store& store) {
  if (out.rows == 0 || out.columns == 0) return;
  const bool packs = a.type == at::kBFloat16 && a.columns > 0 && store.product != nullptr;
  if (packs && has_packed_products()) return multiply_packed(a, b, out, store);
  if (out.type == at::kFloat) return multiply_into_f32(a, b, out, store);
  for (std::int64_t column = 0; column < out.columns; column += kProductColumns) {
    const std::int64_t columns = std::min(kProductColumns, out.columns - column);
    const Matrix right = part(b, 0, b.rows, column, columns);
    for (std::int64_t row = 0; row < out.rows; row += kProductRows) {
      const std::int64_t rows = std::min(kProductRows, out.rows - row);
      const Matrix block{.data = store.product, .rows = rows, .columns = columns, .stride = columns};
      product(part(a, row, rows, 0, a.columns), right, 0.0F, block);
      store_block(block, part(out, row, rows, column, columns), store, column);
    }
  }
}

}  // namespace vramfit::kernels
