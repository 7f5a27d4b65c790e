// Choosing an algorithm. There is one, and it asks for no workspace: which one a real card's heuristic picks, and what
// it asks for within the caller's limit, is not published; PyTorch allocates the limit, not what is asked for.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "phantom/core/contents.h"
#include "phantom/core/visibility.h"
#include "phantom/cublas/status_names.h"
#include "phantom/generate/generated.h"

namespace {

constexpr int kAlgorithm = 1;

cublasLtMatmulHeuristicResult_t only_result() {
  cublasLtMatmulHeuristicResult_t result{};
  result.algo.data[0] = kAlgorithm;
  result.workspaceSize = 0;
  result.state = CUBLAS_STATUS_SUCCESS;
  result.wavesCount = 1;
  return result;
}

template <class Value>
Value attribute(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t name) {
  Value value{};
  std::size_t written = 0;
  cublasLtMatmulDescGetAttribute(matmul, name, &value, sizeof value, &written);
  return value;
}

// What a product writes besides D: an activation's input or mask, largest values, a bias's gradient.
void touch_epilogue(cublasLtMatmulDesc_t matmul) {
  using vramfit::phantom::touched_by_call;
  constexpr unsigned kBiasGradient =
      16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;  // 16: the bit of ..._BGRAD
  for (const auto name : {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
                          CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER}) {
    touched_by_call(attribute<const void*>(matmul, name));
  }
  if ((attribute<std::uint32_t>(matmul, CUBLASLT_MATMUL_DESC_EPILOGUE) & kBiasGradient) != 0) {
    touched_by_call(attribute<const void*>(matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  }
}

}  // namespace

PHANTOM_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, const void*, const void*,
                                             cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*,
                                             const void*, cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t,
                                             const cublasLtMatmulAlgo_t*, void* workspace, size_t,
                                             cudaStream_t stream) {
  if (matmul == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  vramfit::phantom::generated::computing_on(stream);
  vramfit::phantom::touched_by_call(d);
  vramfit::phantom::touched_by_call(workspace);
  touch_epilogue(matmul);
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t matmul,
                                                             cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                             cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                             cublasLtMatmulPreference_t, int asked,
                                                             cublasLtMatmulHeuristicResult_t results[], int* given) {
  const bool complete = matmul != nullptr && a != nullptr && b != nullptr && c != nullptr && d != nullptr;
  if (!complete || asked <= 0 || results == nullptr || given == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = only_result();
  *given = 1;
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulAlgoGetIds(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t,
                                                       cudaDataType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                                       int asked, int identifiers[], int* given) {
  if (asked <= 0 || identifiers == nullptr || given == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  identifiers[0] = kAlgorithm;
  *given = 1;
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t,
                                                     cudaDataType_t, cudaDataType_t, cudaDataType_t, cudaDataType_t,
                                                     int identifier, cublasLtMatmulAlgo_t* algorithm) {
  if (algorithm == nullptr || identifier != kAlgorithm) return CUBLAS_STATUS_INVALID_VALUE;
  *algorithm = only_result().algo;
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                      cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                      cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm,
                                                      cublasLtMatmulHeuristicResult_t* result) {
  if (algorithm == nullptr || result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasLtMatmulAlgo_t kept = result->algo;  // never updated, says cublasLt.h
  *result = only_result();
  result->algo = kept;
  return CUBLAS_STATUS_SUCCESS;
}

PHANTOM_EXPORT size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
PHANTOM_EXPORT size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }

PHANTOM_EXPORT cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int* value) {
  return vramfit::phantom::cublas_property(type, value);
}

PHANTOM_EXPORT const char* cublasLtGetStatusName(cublasStatus_t status) {
  return vramfit::phantom::cublas_status_name(status);
}

PHANTOM_EXPORT const char* cublasLtGetStatusString(cublasStatus_t status) {
  return vramfit::phantom::cublas_status_name(status);
}
