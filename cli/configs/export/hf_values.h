// Values as transformers writes them, for the tools that are built on it.
#pragma once

#include <string>
#include <vector>

#include "cli/configs/export/export.h"

namespace vramfit {

/// "adamw_torch_fused"; refuses optimizers that it lacks.
std::string hf_optimizer(const ExportWriter& writer);

/// "flash_attention_2"; what it lacks is marked.
std::string hf_attention(ExportWriter& writer);

/// "true" or "false"; other kinds of checkpointing are marked.
std::string hf_checkpointing(ExportWriter& writer);

/// dtype, bf16 and fp16. Weights under autocast are those of the storage dtype on one GPU, and always fp32 under FSDP.
std::string hf_precision_lines(ExportWriter& writer);

/// The dtype in which weights are loaded: "bf16".
std::string loaded_dtype(ExportWriter& writer);

/// load_in_4bit, load_in_8bit, and the key of nested quantization.
std::string bits_lines(ExportWriter& writer, std::string_view nested);

/// A number as YAML takes it for one: "1e-05" needs a dot.
std::string yaml_number(const std::string& text);
std::string yaml_texts(const std::vector<std::string>& texts);

}  // namespace vramfit
