// Writes the beginning of a .safetensors file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model_specs/dtype.h"

namespace vramfit {

struct HeaderEntry {
  std::string name;
  Dtype dtype = Dtype::f32;  // fp32, bf16, fp16 or bytes
  std::vector<std::int64_t> shape;
};

std::int64_t entry_bytes(const HeaderEntry& entry);

/// 8 bytes of length, then JSON padded with spaces to a multiple of 8 bytes; the tensors' bytes follow in this order.
/// `framework`: whether to say {"format": "pt"}, which transformers asks of a file of weights. Throws FaultError for
/// another dtype.
std::string safetensors_header(std::span<const HeaderEntry> entries, bool framework);

}  // namespace vramfit
