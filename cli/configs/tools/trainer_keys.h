// The arguments of transformers' Trainer and of TRL, as tables; LLaMA-Factory takes the first, too.
#pragma once

#include "cli/configs/key_table.h"

namespace vramfit {

/// transformers.TrainingArguments (5.23, and what 4.57 had and 5 has no longer).
const KeyTable& training_arguments();

/// What trl 1.16 adds: SFTConfig, DPOConfig, GRPOConfig, RewardConfig, ModelConfig, ScriptArguments.
const KeyTable& trl_arguments();

/// "block_size=128, bf16_stochastic_round=True", in axolotl also a map: only torchao's AdamW has these, and needs other
/// memory with them. And SGD's "momentum=0.9".
void read_optimizer_arguments(const Setting& setting, Draft& draft);

/// Of all optimizers only SGD needs memory for it.
void read_weight_decay(const Setting& setting, Draft& draft);

/// The keys of both tables that `map` has are read, the others are ignored as unknown.
void read_arguments(const ConfigNode& map, const std::string& file, const KeyTable& own, Draft& draft);

}  // namespace vramfit
