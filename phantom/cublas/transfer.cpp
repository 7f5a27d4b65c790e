// Copies between host and card: real as far as the session makes copies real. Column-major: a column is a row of
// copy_rows.
#include <cublas_v2.h>

#include "phantom/core/contents.h"
#include "phantom/core/visibility.h"

namespace {

using vramfit::phantom::Status;

cublasStatus_t matrix(int64_t rows, int64_t columns, int64_t element, const void* source, int64_t source_columns_apart,
                      void* target, int64_t target_columns_apart) {
  if (rows < 0 || columns < 0 || element <= 0 || source_columns_apart <= 0 || target_columns_apart <= 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (rows == 0 || columns == 0) return CUBLAS_STATUS_SUCCESS;
  const Status status = vramfit::phantom::copy_rows(target, target_columns_apart * element, source,
                                                    source_columns_apart * element, rows * element, columns);
  return status == Status::success ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}

// A vector with a stride is a matrix of one row.
cublasStatus_t vector(int64_t count, int64_t element, const void* source, int64_t source_stride, void* target,
                      int64_t target_stride) {
  return matrix(1, count, element, source, source_stride, target, target_stride);
}

}  // namespace

#define PHANTOM_VECTOR(NAME, INTEGER)                                                                                  \
  PHANTOM_EXPORT cublasStatus_t NAME(INTEGER n, INTEGER element, const void* x, INTEGER incx, void* y, INTEGER incy) { \
    return vector(n, element, x, incx, y, incy);                                                                       \
  }
#define PHANTOM_VECTOR_ASYNC(NAME, INTEGER)                                                                          \
  PHANTOM_EXPORT cublasStatus_t NAME(INTEGER n, INTEGER element, const void* x, INTEGER incx, void* y, INTEGER incy, \
                                     cudaStream_t) {                                                                 \
    return vector(n, element, x, incx, y, incy);                                                                     \
  }
#define PHANTOM_MATRIX(NAME, INTEGER)                                                                            \
  PHANTOM_EXPORT cublasStatus_t NAME(INTEGER rows, INTEGER columns, INTEGER element, const void* a, INTEGER lda, \
                                     void* b, INTEGER ldb) {                                                     \
    return matrix(rows, columns, element, a, lda, b, ldb);                                                       \
  }
#define PHANTOM_MATRIX_ASYNC(NAME, INTEGER)                                                                      \
  PHANTOM_EXPORT cublasStatus_t NAME(INTEGER rows, INTEGER columns, INTEGER element, const void* a, INTEGER lda, \
                                     void* b, INTEGER ldb, cudaStream_t) {                                       \
    return matrix(rows, columns, element, a, lda, b, ldb);                                                       \
  }

PHANTOM_VECTOR(cublasSetVector, int)
PHANTOM_VECTOR(cublasSetVector_64, int64_t)
PHANTOM_VECTOR(cublasGetVector, int)
PHANTOM_VECTOR(cublasGetVector_64, int64_t)
PHANTOM_VECTOR_ASYNC(cublasSetVectorAsync, int)
PHANTOM_VECTOR_ASYNC(cublasSetVectorAsync_64, int64_t)
PHANTOM_VECTOR_ASYNC(cublasGetVectorAsync, int)
PHANTOM_VECTOR_ASYNC(cublasGetVectorAsync_64, int64_t)
PHANTOM_MATRIX(cublasSetMatrix, int)
PHANTOM_MATRIX(cublasSetMatrix_64, int64_t)
PHANTOM_MATRIX(cublasGetMatrix, int)
PHANTOM_MATRIX(cublasGetMatrix_64, int64_t)
PHANTOM_MATRIX_ASYNC(cublasSetMatrixAsync, int)
PHANTOM_MATRIX_ASYNC(cublasSetMatrixAsync_64, int64_t)
PHANTOM_MATRIX_ASYNC(cublasGetMatrixAsync, int)
PHANTOM_MATRIX_ASYNC(cublasGetMatrixAsync_64, int64_t)
