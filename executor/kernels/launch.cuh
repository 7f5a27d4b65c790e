// For kernels' sources: launches as nvcc makes them. Tests compile the same sources without nvcc, over a header that
// stands for CUDA's and runs a block's threads by turns (tests/executor/kernels/emulated_cuda.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "executor/kernels/kernels.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

namespace vramfit::cuda {

constexpr int kWarp = 32, kThreads = 256;
/// Several waves on the largest card; threads go on with what is left.
constexpr std::int64_t kMostBlocks = 4096;

/// Blocks of kThreads for so many threads, at least one.
inline unsigned blocks_for(std::int64_t threads) {
  const std::int64_t blocks = (threads + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMostBlocks));
}

#ifdef __CUDACC__
template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), unsigned blocks, int threads, Stream stream, Arguments&&... arguments) {
  kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(std::forward<Arguments>(arguments)...);
  return cudaGetLastError();
}
#else
template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), unsigned blocks, int threads, Stream /*stream*/, Arguments&&... arguments) {
  emulated::run(blocks, threads, [&] { kernel(arguments...); });
  return 0;
}
#endif

}  // namespace vramfit::cuda
