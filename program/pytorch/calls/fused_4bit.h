// Which products with matrices of 4 bits bitsandbytes 0.50.2 computes in one kernel, which dequantizes nothing in
// memory.
#pragma once

#include <cstdint>

#include "job/cluster/device.h"

namespace vramfit::eager {

/// Of fewer rows than this there is no rule.
inline constexpr std::int64_t kFewestRowsOf4Bit = 9;

/// The most rows, at least kFewestRowsOf4Bit of them, that a product of rows x inputs with a matrix of outputs x inputs
/// has in such a kernel; fewer if it has none. In fp16 or bf16, with scales of 64 codes. From bitsandbytes'
/// backends/cuda/ops.py (_gemm_4bit_use_custom_cuda), whose limits were measured there, card by card.
std::int64_t most_rows_of_fused_4bit(std::int64_t inputs, std::int64_t outputs, const Device& device);

}  // namespace vramfit::eager
