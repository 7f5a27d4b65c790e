// What Liger Kernel (0.8) replaces in a model of transformers that a Trainer trains (use_liger_kernel).
#pragma once

#include "job/job.h"
#include "program/pytorch/modelings/llama_graph.h"

namespace vramfit::eager {

/// Of a model of Llama's form (transformers/monkey_patch.py: apply_liger_kernel_to_llama and others). All are off
/// without --kernels liger.
struct LigerKernels {
  bool rope = false, norm = false, gate = false, cross_entropy = false, fused_loss = false;
  bool in_place = true;  // the gradient of a norm takes the place of its output's
};

/// Throws NotModelled for a model that it has no rules for, LibraryFails for what Liger refuses.
LigerKernels liger_kernels(const Job& job, const LlamaGraph& llama);

/// Throws NotModelled for a job that asks for them, or for axolotl's, with a model which neither knows.
void require_no_kernels(const Job& job);

}  // namespace vramfit::eager
