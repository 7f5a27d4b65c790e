// Whose kernels compute, as text: "vramfit", or "liger:rope=off,swiglu=on".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "job/job.h"

namespace vramfit {

/// A part of Liger by its name in liger_kernel_config.
struct LigerPart {
  std::string_view name;
  std::optional<bool> LigerParts::*value;
};
/// All, in the order in which they are written.
std::span<const LigerPart> liger_parts();

/// JobField (job/fields/job_fields.h) says what they return and throw. "" for those that there always were, so that
/// plan files and fingerprints from before others came are what they were.
std::string get_kernels(const Job& job);
void set_kernels(Job& job, std::string_view value);

inline constexpr std::string_view kKernelValues = "libtorch|vramfit|liger|liger:PART=on,...";
inline constexpr std::string_view kKernelsHelp =
    "GPUs: vramfit uses one CUDA kernel, without scratch, for work that takes LibTorch's functions several passes: "
    "AdamW with states of few bits or of another dtype, or with stochastic rounding, quantized weights, gated "
    "activations, rotary embeddings and losses (docs/kernels.md). scripts/setup --cuda builds them for \"vramfit "
    "run\". liger: Liger Kernel under transformers' and TRL's Trainers (use_liger_kernel). liger:rope=off,rms_norm=on "
    "switches parts off or on: rope, rms_norm, swiglu, geglu, cross_entropy, fused_linear_cross_entropy, as "
    "liger_kernel_config names them; the others are as Liger has them. Default: libtorch";

}  // namespace vramfit
