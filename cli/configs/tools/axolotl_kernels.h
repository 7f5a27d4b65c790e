// axolotl's own kernels for linears with adapters in its files (0.19, utils/schemas/config.py).
#pragma once

#include "cli/configs/draft.h"

namespace vramfit {

/// lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel and lora_embedding_kernel.
void read_adapter_kernel(const Setting& setting, Draft& draft);
/// trust_remote_code, with which axolotl doesn't switch them on by itself.
void read_remote_code(const Setting& setting, Draft& draft);

/// Once all keys of the file are read: those that axolotl switches on by itself.
void finish_adapter_kernels(const ConfigNode& root, Draft& draft);
/// --kernels, once Liger's are there.
void add_adapter_kernels(Draft& draft);

}  // namespace vramfit
