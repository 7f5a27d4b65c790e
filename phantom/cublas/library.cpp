// What cuBLAS says about itself. Handles and their settings are generated: each cublasCreate gives a handle of its own,
// since PyTorch keeps a workspace for each.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "phantom/core/visibility.h"
#include "phantom/cublas/status_names.h"

PHANTOM_EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  if (version == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  return vramfit::phantom::cublas_property(type, value);
}

PHANTOM_EXPORT size_t cublasGetCudartVersion() { return CUDART_VERSION; }

PHANTOM_EXPORT const char* cublasGetStatusName(cublasStatus_t status) {
  return vramfit::phantom::cublas_status_name(status);
}

PHANTOM_EXPORT const char* cublasGetStatusString(cublasStatus_t status) {
  return vramfit::phantom::cublas_status_name(status);
}
