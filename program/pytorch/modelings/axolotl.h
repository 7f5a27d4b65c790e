// Which linears axolotl's kernels for adapters compute in a model of transformers that its Trainer trains.
#pragma once

#include "job/job.h"
#include "program/pytorch/modelings/llama_graph.h"

namespace vramfit::eager {

/// Throws NotModelled for a job with these kernels that no model has rules for.
void require_axolotl_kernels(const Job& job);

/// Of a model of Llama's form (monkeypatch/lora_kernels.py: apply_lora_kernel_patches). Throws NotModelled for a job or
/// a model that it has no rules for, LibraryFails for what axolotl or its kernels refuse.
AxolotlParts axolotl_kernels(const Job& job, const LlamaGraph& llama, Dtype hidden);

}  // namespace vramfit::eager
