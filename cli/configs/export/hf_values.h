// Values as transformers writes them, for the tools that are built on it.
#pragma once

#include <string>
#include <vector>

#include "cli/configs/export/export.h"

namespace vramfit {

/// The value of `optim`, "adamw_torch_fused", with a line of `optim_args` behind it where it needs one; refuses
/// optimizers that transformers lacks.
std::string hf_optimizer(const ExportWriter& writer);

/// "flash_attention_2"; what it lacks is marked.
std::string hf_attention(ExportWriter& writer);

/// "true" or "false"; other kinds of checkpointing are marked.
std::string hf_checkpointing(ExportWriter& writer);

/// gradient_checkpointing and its options, and what the Trainer's DDP is told.
std::string hf_checkpointing_lines(ExportWriter& writer);

/// dtype, bf16 and fp16. Weights under autocast are those of the storage dtype on one GPU, and always fp32 under FSDP.
std::string hf_precision_lines(ExportWriter& writer);

/// The dtype in which weights are loaded: "bf16".
std::string loaded_dtype(ExportWriter& writer);

/// bnb_4bit_quant_storage of weights in 4 bits that FSDP2 shards: "bfloat16"; "" for others. Without it bitsandbytes
/// has bytes, which accelerate leaves whole on each GPU (1.15, utils/fsdp_utils.py: fsdp2_prepare_model).
std::string storage_of_codes(const ExportWriter& writer);

/// load_in_4bit, load_in_8bit, the key of nested quantization, and with it that of the codes' dtype, which axolotl
/// doesn't need: it has bf16 always (loaders/model.py: _set_quantization_config).
std::string bits_lines(ExportWriter& writer, std::string_view nested);

/// use_liger_kernel and liger_kernel_config; refuses kernels that are no library's, and marks axolotl's.
std::string hf_kernel_lines(ExportWriter& writer);

/// What switches off the Trainer's clipping, which it has by default; "" where the plan clips.
std::string hf_clipping_line(const ExportWriter& writer);

/// A number as YAML takes it for one: "1e-05" needs a dot.
std::string yaml_number(const std::string& text);
std::string yaml_texts(const std::vector<std::string>& texts);

}  // namespace vramfit
