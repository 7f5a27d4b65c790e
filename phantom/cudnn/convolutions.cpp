// Algorithms of the convolutions without graphs. One is offered, and its workspace is taken as 0 and counted as
// unknown.
#include <cudnn.h>

#include "phantom/core/visibility.h"
#include "phantom/generate/generated.h"

namespace {

template <class Result, class Algorithm>
cudnnStatus_t only_algorithm(Algorithm algorithm, int asked, int* given, Result* results) {
  if (asked < 1 || given == nullptr || results == nullptr) return CUDNN_STATUS_BAD_PARAM;
  vramfit::phantom::generated::unknown("cuDNN convolution: workspace taken as 0");
  results[0] = {};
  results[0].algo = algorithm;
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

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, Tensor, Filter, Convolution, Tensor,
                                                                    const int asked, int* given,
                                                                    cudnnConvolutionFwdAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionForwardAlgorithm(cudnnHandle_t, Tensor, Filter, Convolution, Tensor,
                                                                  const int asked, int* given,
                                                                  cudnnConvolutionFwdAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(cudnnHandle_t, Tensor, const void*, Filter,
                                                                    const void*, Convolution, Tensor, void*,
                                                                    const int asked, int* given,
                                                                    cudnnConvolutionFwdAlgoPerf_t* results, void*,
                                                                    size_t) {
  return only_algorithm(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, Filter, Tensor, Convolution,
                                                                         Tensor, const int asked, int* given,
                                                                         cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithm(cudnnHandle_t, Filter, Tensor, Convolution,
                                                                       Tensor, const int asked, int* given,
                                                                       cudnnConvolutionBwdDataAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(cudnnHandle_t, Filter, const void*, Tensor,
                                                                         const void*, Convolution, Tensor, void*,
                                                                         const int asked, int* given,
                                                                         cudnnConvolutionBwdDataAlgoPerf_t* results,
                                                                         void*, size_t) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t
cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, Tensor, Tensor, Convolution, Filter, const int asked,
                                              int* given, cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithm(cudnnHandle_t, Tensor, Tensor, Convolution,
                                                                         Filter, const int asked, int* given,
                                                                         cudnnConvolutionBwdFilterAlgoPerf_t* results) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, asked, given, results);
}

PHANTOM_EXPORT cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(cudnnHandle_t, Tensor, const void*, Tensor,
                                                                           const void*, Convolution, Filter, void*,
                                                                           const int asked, int* given,
                                                                           cudnnConvolutionBwdFilterAlgoPerf_t* results,
                                                                           void*, size_t) {
  return only_algorithm(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, asked, given, results);
}
