// Which of the Liger kernels are asked for by name (--kernels liger:PART=on|off,...).
#pragma once

#include <optional>

namespace vramfit {

/// By the names of transformers' liger_kernel_config (liger-kernel 0.8, transformers/monkey_patch.py:
/// apply_liger_kernel_to_llama and others); none: as Liger has it for the model.
struct LigerParts {
  std::optional<bool> rope, rms_norm;
  std::optional<bool> swiglu, geglu;  // a model has one of both
  std::optional<bool> cross_entropy, fused_linear_cross_entropy;
  bool operator==(const LigerParts&) const = default;
};

}  // namespace vramfit
