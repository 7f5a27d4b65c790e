// Machine facts that rules read. A row per card comes from configs/gpus.json; CPU ranks make their own.
#pragma once

#include <cstdint>
#include <string>

#include "model_specs/units.h"

namespace vramfit {

enum class DeviceKind { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cuda;
  std::string name;            // "H100-80GB", "cpu-4GiB"
  int compute_capability = 0;  // 90 for 9.0; 0 on CPU
  int sm_count = 0;
  int threads = 1;           // CPU: threads a rank computes with
  bool onednn_bf16 = false;  // CPU: whether oneDNN takes bf16 matmuls (avx512bw and up)
};

/// What LibTorch 2.11 allocates for a cuBLAS handle (CUDABlas handle pool: 8 x 4096 KiB on compute capability 9.0,
/// 2 x 4096 + 8 x 16 KiB on others); nothing on CPU.
Bytes cublas_workspace(const Device& device);

}  // namespace vramfit
