// What transformers' Trainer and TRL's alone have a choice of, as text.
#pragma once

#include <string>
#include <string_view>

#include "job/job.h"

namespace vramfit {

/// JobField (job/fields/job_fields.h) says what they return and throw; "" as long as the Trainer decides.
std::string get_find_unused(const Job& job);
void set_find_unused(Job& job, std::string_view value);
/// "" for "none".
std::string get_packing(const Job& job);
void set_packing(Job& job, std::string_view value);

inline constexpr std::string_view kFindUnusedHelp =
    "transformers' Trainer and TRL's trainers with DDP: look for parameters that a step doesn't use "
    "(ddp_find_unused_parameters). Default: on without gradient checkpointing, and with adapters";
inline constexpr std::string_view kReentrantCheckpointsHelp =
    "transformers' Trainer and TRL's trainers, without FSDP1: checkpoints re-enter autograd (use_reentrant), which "
    "keeps other tensors (docs/activation-checkpointing.md). Default: off";
inline constexpr std::string_view kPackingHelp =
    "Packed documents: bfd, TRL's default strategy, makes one row of a micro-batch's documents, and a mask of that "
    "row's length squared (--stack trl and trl-deepspeed). With --attention flash-attn there is no mask, and --stack "
    "transformers and deepspeed have it, too (axolotl's sample_packing). Rows that \"wrapped\" packs are full ones, as "
    "with none. Default: none";

}  // namespace vramfit
