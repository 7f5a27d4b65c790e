// Whose kernels compute, as text: "vramfit", "liger:rope=off,swiglu=on", "axolotl:o=off", or "liger+axolotl".
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

/// A part of axolotl's kernels for adapters by its name between lora_ and _kernel.
struct AxolotlPart {
  std::string_view name;
  bool AxolotlParts::*value;
};
std::span<const AxolotlPart> axolotl_parts();

/// JobField (job/fields/job_fields.h) says what they return and throw. "" for those that there always were, so that
/// plan files and fingerprints from before others came are what they were.
std::string get_kernels(const Job& job);
void set_kernels(Job& job, std::string_view value);

inline constexpr std::string_view kKernelValues =
    "libtorch|vramfit|liger|liger:PART=on,...|axolotl|axolotl:PART=off,...|liger+axolotl";
inline constexpr std::string_view kKernelsHelp =
    "GPUs: vramfit uses one CUDA kernel, without scratch, for work that takes LibTorch's functions several passes: "
    "AdamW with states of few bits or of another dtype, or with stochastic rounding, quantized weights, gated "
    "activations, rotary embeddings and losses (docs/kernels.md). scripts/setup --cuda builds them for \"vramfit "
    "run\". liger: Liger Kernel under transformers' and TRL's Trainers (use_liger_kernel). liger:rope=off,rms_norm=on "
    "switches parts off or on: rope, rms_norm, swiglu, geglu, cross_entropy, fused_linear_cross_entropy, as "
    "liger_kernel_config names them; the others are as Liger has them. axolotl: its kernels for linears with adapters "
    "(lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel); axolotl:mlp=off has those of qkv and o; liger+axolotl: both. "
    "Default: libtorch";

}  // namespace vramfit
