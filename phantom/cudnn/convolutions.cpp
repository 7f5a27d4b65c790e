// Algorithms of the convolutions without graphs. One is offered. Its workspace is not known; its bound is.
#include <cudnn.h>

#include "phantom/core/visibility.h"
#include "phantom/cudnn/tensors.h"
#include "phantom/cudnn/workspaces.h"
#include "phantom/generate/generated.h"

namespace {

struct Convolved {
  const void *x, *w, *y;  // descriptors
};

size_t workspace_of(const Convolved& tensors) {
  using namespace vramfit::phantom::cudnn;  // NOLINT(google-build-using-namespace)
  const Shape x = shape_of(tensors.x);
  const std::int64_t bound = convolution_bound({.x = sizes_of(x),
                                                .w = sizes_of(shape_of(tensors.w)),
                                                .y = sizes_of(shape_of(tensors.y)),
                                                .element_bytes = static_cast<std::int64_t>(data_bytes(x.type))});
  return static_cast<size_t>(vramfit::phantom::generated::workspace("cuDNN convolution", bound));
}

cudnnStatus_t give_workspace(const Convolved& tensors, size_t* bytes) {
  if (bytes == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *bytes = workspace_of(tensors);
  return CUDNN_STATUS_SUCCESS;
}

template <class Result, class Algorithm>
cudnnStatus_t only_algorithm(Algorithm algorithm, const Convolved& tensors, int asked, int* given, Result* results) {
  if (asked < 1 || given == nullptr || results == nullptr) return CUDNN_STATUS_BAD_PARAM;
  results[0] = {};
  results[0].algo = algorithm;
  results[0].memory = workspace_of(tensors);
  results[0].status = CUDNN_STATUS_SUCCESS;
  results[0].determinism = CUDNN_DETERMINISTIC;
  *given = 1;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t one(int* count) {
  if (count == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *count = 1;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

using Tensor = const cudnnTensorDescriptor_t;
using Filter = const cudnnFilterDescriptor_t;
using Convolution = const cudnnConvolutionDescriptor_t;

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionForwardAlgorithmMaxCount(cudnnHandle_t, int* count) {
  return one(count);
}
PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithmMaxCount(cudnnHandle_t, int* count) {
  return one(count);
}
PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(cudnnHandle_t, int* count) {
  return one(count);
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, Tensor x, Filter w, Convolution,
                                                                    Tensor y, const int asked, int* given,
                                                                    cudnnConvolutionFwdAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t, Tensor x, Filter w, Convolution,
                                                                  Tensor y, const int asked, int* given,
                                                                  cudnnConvolutionFwdAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t, Tensor x, const void*, Filter w,
                                                                    const void*, Convolution, Tensor y, void*,
                                                                    const int asked, int* given,
                                                                    cudnnConvolutionFwdAlgoPerf_t* results, void*,
                                                                    size_t) {
  return only_algorithm(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, Filter w, Tensor y, Convolution,
                                                                         Tensor x, const int asked, int* given,
                                                                         cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(cudnnHandle_t, Filter w, Tensor y, Convolution,
                                                                       Tensor x, const int asked, int* given,
                                                                       cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t, Filter w, const void*, Tensor y,
                                                                         const void*, Convolution, Tensor x, void*,
                                                                         const int asked, int* given,
                                                                         cudnnConvolutionBwdDataAlgoPerf_t* results,
                                                                         void*, size_t) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t
cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, Tensor x, Tensor y, Convolution, Filter w, const int asked,
                                              int* given, cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(cudnnHandle_t, Tensor x, Tensor y, Convolution,
                                                                         Filter w, const int asked, int* given,
                                                                         cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t, Tensor x, const void*,
                                                                           Tensor y, const void*, Convolution, Filter w,
                                                                           void*, const int asked, int* given,
                                                                           cudnnConvolutionBwdFilterAlgoPerf_t* results,
                                                                           void*, size_t) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, {x, w, y}, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, Tensor x, Filter w, Convolution,
                                                                     Tensor y, cudnnConvolutionFwdAlgo_t,
                                                                     size_t* bytes) {
  return give_workspace({x, w, y}, bytes);
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, Filter w, Tensor y,
                                                                          Convolution, Tensor x,
                                                                          cudnnConvolutionBwdDataAlgo_t,
                                                                          size_t* bytes) {
  return give_workspace({x, w, y}, bytes);
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, Tensor x, Tensor y,
                                                                            Convolution, Filter w,
                                                                            cudnnConvolutionBwdFilterAlgo_t,
                                                                            size_t* bytes) {
  return give_workspace({x, w, y}, bytes);
}
