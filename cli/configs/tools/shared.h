// What several tools write alike: transformers' names of optimizers and of attention, FSDP, DeepSpeed, adapters.
#pragma once

#include "cli/configs/key_table.h"

namespace vramfit {

/// transformers' OptimizerNames ("adamw_torch_fused") and those that axolotl adds.
void read_hf_optimizer(const Setting& setting, Draft& draft);

/// attn_implementation: flash_attention_2, sdpa, eager.
void read_hf_attention(const Setting& setting, Draft& draft);

/// A dtype of weights: bfloat16, torch.bfloat16, bf16.
void read_weights_dtype(const Setting& setting, Draft& draft);

/// Whether documents share rows and each sees itself alone. With the flash-attn package none needs a mask. Without it
/// LLaMA-Factory makes masks of four dimensions (data/collator.py: SFTDataCollatorWith4DAttentionMask); under axolotl
/// sdpa runs kernels of documents or makes a mask, and eager makes one (0.19, loaders/patch_manager.py:
/// _apply_sdpa_varlen_patch).
void read_packed_documents(const Setting& setting, Draft& draft);

/// bf16: true, fp16: true, of the program's own arguments.
void read_bf16(const Setting& setting, Draft& draft);
void read_fp16(const Setting& setting, Draft& draft);

/// true is full checkpointing.
void read_checkpointing(const Setting& setting, Draft& draft);
/// gradient_checkpointing_kwargs: a map, or one as JSON in a text.
void read_checkpointing_options(const Setting& setting, Draft& draft);
/// What DistributedDataParallel is made with, by the names of the Trainer's arguments.
void read_ddp(const Setting& setting, Draft& draft);

/// fsdp_config: its keys with or without "fsdp_" before them. `version` is what is meant if none is given.
void read_fsdp(const Setting& setting, int version, Draft& draft);
void read_fsdp_version(const Setting& setting, Draft& draft);
/// Throws InputError for a strategy of FSDP1 where FSDP2 has a switch.
void require_switch_of_fsdp2(const Draft& draft);

/// parallelism_config, with or without "parallelism_config_" before its keys.
void read_parallelism(const Setting& setting, Draft& draft);
void read_replicas(const Setting& setting, Draft& draft);
void read_shards(const Setting& setting, Draft& draft);

/// What trains with DeepSpeed; throws InputError with both places where a file says FSDP.
void use_deepspeed(const Setting& by, Draft& draft);
/// DeepSpeed's own configuration.
void read_deepspeed_keys(const Setting& setting, Draft& draft);
/// Parameters in host memory have no states there without `states`, the name of what offloads these; --offload params
/// has both.
void refuse_offload_without_states(const Setting& parameters, std::string_view states, Draft& draft);
/// deepspeed: a path, or the configuration itself.
void read_deepspeed(const Setting& setting, Draft& draft);

/// Modules that get adapters: a list, or "all-linear".
void read_lora_targets(const Setting& setting, Draft& draft);
void read_lora_alpha(const Setting& setting, Draft& draft);
void read_lora_dropout(const Setting& setting, Draft& draft);
void read_rslora(const Setting& setting, Draft& draft);
void read_dora(const Setting& setting, Draft& draft);
void read_load_in_4bit(const Setting& setting, Draft& draft);
void read_load_in_8bit(const Setting& setting, Draft& draft);

/// A count that a field takes as it is.
template <const auto& Field>
void read_count(const Setting& setting, Draft& draft) {
  draft.set(Field, std::to_string(setting.whole(1, std::int64_t{1} << 28)), setting);
}
inline constexpr std::string_view kSeqLen = "seq_len", kMicroBatch = "micro_batch", kGradAccum = "grad_accum",
                                  kGlobalBatch = "global_batch", kLoraRank = "lora_rank",
                                  kRotaryPositions = "rotary_positions";

/// max_grad_norm: above 0 is what an estimate has, 0 and null are --no-clip.
void read_clipped_norm(const Setting& setting, Draft& draft);

/// A part of a map of which what it is is said as a whole.
void read_part(const Setting& setting, Draft& draft);
/// Deterministic kernels.
void read_determinism(const Setting& setting, Draft& draft);

void read_model(const Setting& setting, Draft& draft);

}  // namespace vramfit
