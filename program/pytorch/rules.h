// What PyTorch's runtimes have rules for, whichever it is.
#pragma once

#include <span>
#include <string_view>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit::eager {

/// Products in 16 bits under autocast, or FSDP2's mixed precision: what bf16=True and fp16=True are.
bool is_mixed_in_16_bits(const Job& job);

/// Throws NotModelled, by its flag, for the first field that only this project's engine honours, is not among
/// `honoured` and differs from `modelled`; for modelings, optimizers and attention without rules; and for what has no
/// flash attention, which 16-bit types need here.
void require_rules(const Job& job, const Job& modelled, const Cluster& cluster,
                   std::span<const std::string_view> honoured = {});

/// The loss in `modelled`: the job's own where its loop computes it so, else the whole one. Throws NotModelled for
/// chunks that no loop makes.
void require_loss(const Job& job, Job& modelled);

/// Throws NotModelled for what torchtune's recipes do otherwise than their rules: fp32, in which norms have a kernel of
/// their own; and for adapters that they don't have.
void require_torchtune(const Job& job, Job& modelled);

/// Weights in bf16 under autocast, or FSDP2's mixed precision: what a checkpoint in bf16 is with bf16=True since
/// transformers 5.
void require_storage(const Job& job, Job& modelled);

/// Throws NotModelled for weights of few bits but those of QLoRA in 16-bit precision.
void require_quantization(const Job& job);

/// Throws LibraryFails where GRPOTrainer has too few completions, NotModelled for choices of it without rules.
void require_grpo(const Job& job);

/// Throws NotModelled for adapters under TRL's SFTTrainer that have no rules: TRL leaves their dtype to PEFT, which
/// makes them fp32, and converts those over quantized weights to bf16, which `modelled` gets.
void require_trl_adapters(const Job& job, Job& modelled);

}  // namespace vramfit::eager
