// Which of axolotl's kernels for adapters are asked for (--kernels axolotl:PART=on|off,...).
#pragma once

namespace vramfit {

/// By axolotl's keys (0.19): lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel.
struct AxolotlParts {
  bool mlp = false, qkv = false, o = false;
  bool any() const { return mlp || qkv || o; }
  /// Whether attention runs in a copy of its code (monkeypatch/lora_kernels.py: patch_self_attn_lora), which was made
  /// before Liger's plugin replaced the rotation, and so has the library's.
  bool copies_attention() const { return qkv || o; }
  bool operator==(const AxolotlParts&) const = default;
};

}  // namespace vramfit
