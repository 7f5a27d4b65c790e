// Machine facts that rules read. A row per card comes from configs/gpus.json; CPU ranks make their own.
#pragma once

#include <cstdint>
#include <string>

#include "base/text/units.h"

namespace vramfit {

enum class DeviceKind { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cuda;
  std::string name;            // "H100-80GB", "cpu-4GiB"
  int compute_capability = 0;  // 90 for 9.0; 0 on CPU
  int sm_count = 0;
  int threads = 1;           // CPU: threads a rank computes with
  bool onednn_bf16 = false;  // CPU: whether oneDNN supports bf16 matmuls (avx512bw and up)
};

/// What LibTorch 2.11 allocates for a cuBLAS handle (CUDABlas handle pool: 8 x 4096 KiB on compute capability 9.0,
/// 2 x 4096 + 8 x 16 KiB on others); nothing on CPU.
Bytes cublas_workspace(const Device& device);

/// The same for matrix products that use cublasLt (those with a bias, at default settings).
inline constexpr Bytes kCublasLtWorkspace = kMiB;

/// Resident threads per SM, at most: 1536 on consumer parts of compute capability 8.6, 8.9 and 12, 1024 on 7.5, else
/// 2048 (CUDA programming guide, table of limits).
std::int64_t threads_an_sm(const Device& device);

/// Scratch of a sum over all elements of a contiguous tensor into one float, across thread blocks: partial results, and
/// a counter. 0 without one. Source: ATen/native/cuda/Reduce.cuh of LibTorch 2.11, setReduceConfig.
struct SumScratch {
  Bytes partials, counter;
};
SumScratch sum_scratch(std::int64_t elements, const Device& device);

/// Gradients are summed in parts of at most this many elements: larger parts would exceed 32-bit indices.
inline constexpr std::int64_t kNormPart = std::int64_t{1} << 28;

}  // namespace vramfit
