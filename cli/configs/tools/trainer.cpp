// Arguments of transformers' Trainer or of TRL, flat, as their command lines and `trl sft --config` take them.
#include <algorithm>
#include <array>

#include "cli/configs/tools.h"
#include "cli/configs/tools/launchers.h"
#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/trainer_keys.h"

namespace vramfit {
namespace {

bool has_any(const ConfigNode& root, std::span<const std::string_view> keys) {
  return std::ranges::any_of(keys, [&](std::string_view key) { return find_in(root, key) != nullptr; });
}

// Only TRL's scripts have them.
constexpr std::array<std::string_view, 20> kOfTrl{"accelerate_config",
                                                  "max_length",
                                                  "packing",
                                                  "dataset_name",
                                                  "use_peft",
                                                  "lora_r",
                                                  "lora_target_modules",
                                                  "dataset_text_field",
                                                  "loss_type",
                                                  "padding_free",
                                                  "completion_only_loss",
                                                  "assistant_only_loss",
                                                  "beta",
                                                  "num_generations",
                                                  "load_in_4bit",
                                                  "load_in_8bit",
                                                  "use_bnb_nested_quant",
                                                  "max_completion_length",
                                                  "dataset_num_proc",
                                                  "max_prompt_length"};
constexpr std::array<std::string_view, 4> kOfAnyTrainer{"per_device_train_batch_size", "gradient_accumulation_steps",
                                                        "output_dir", "per_device_eval_batch_size"};

int score(const ConfigNode& root) {
  const auto known = known_keys(root, training_arguments()) + known_keys(root, trl_arguments());
  if (!has_any(root, kOfAnyTrainer) && known < 3) return 0;
  return std::min<int>(static_cast<int>(known), kSure - 1);
}

/// trl 1.16: trainer/base_config.py, sft_config.py, model_config.py.
void assume_trl(Draft& draft, bool has_task_type) {
  draft.assume("checkpointing", "full", "TRL's default");
  if (!draft.has(fact::kBf16Off)) draft.assume(fact::kMixedHere, "bf16", "TRL's default");
  if (draft.is(fact::kLibrary, "trl-grpo")) {
    draft.assume("seq_len", "513", "TRL's default of completions, behind a prompt of one token");
  }
  if (!draft.has(fact::kAnyLength)) draft.assume("seq_len", "1024", "TRL's default");
  if (!draft.is(fact::kLora, "on")) return;
  if (draft.is(fact::kLibrary, "trl-reward") && !has_task_type) {
    draft.not_modelled("lora_task_type CAUSAL_LM, TRL's default, of a reward model (SEQ_CLS is)");
  }
  draft.assume("lora_rank", "16", "TRL's default");
  draft.assume("lora_alpha", "32", "TRL's default");
  draft.assume("lora_dropout", "0.05", "TRL's default");
  draft.assume("lora_targets", "q_proj,v_proj", "PEFT's default for models like Llama");
}

// Of DPOConfig alone: what is named after its beta belongs to other trainers, too.
constexpr std::array<std::string_view, 4> kOfDpo{"f_divergence_type", "f_alpha_divergence_coef", "ld_alpha",
                                                 "discopop_tau"};

bool is_of_reward(const ConfigNode& root) {
  const ConfigNode* kind = find_in(root, "lora_task_type");
  return find_in(root, "center_rewards_coefficient") != nullptr ||
         (kind != nullptr && Setting{"", "", kind}.is("SEQ_CLS"));
}

/// A loss that only GRPOTrainer has.
bool is_of_grpo(const Setting& loss) {
  constexpr std::array<std::string_view, 4> kLosses{"dapo", "grpo", "bnpo", "dr_grpo"};
  return std::ranges::any_of(kLosses, [&](std::string_view name) { return loss.is(name); });
}

// Of transformers' own examples that have max_seq_length, too (run_glue.py, run_qa.py), each names one of these.
constexpr std::array<std::string_view, 7> kOfExamples{
    "task_name", "doc_stride", "pad_to_max_length", "mlm_probability", "train_file", "validation_file", "line_by_line"};

/// What SFTConfig called max_length before TRL 0.20 (0.18: trainer/sft_config.py), in a language model's training.
bool has_length_of_sft(const ConfigNode& root) {
  return find_in(root, "max_seq_length") != nullptr && !has_any(root, kOfExamples);
}

std::string_view library_of(const ConfigNode& root) {
  if (has_any(root, kOfDpo)) return "trl-dpo";
  if (is_of_reward(root)) return "trl-reward";
  if (const ConfigNode* loss = find_in(root, "loss_type"); loss != nullptr && is_of_grpo({"", "", loss})) {
    return "trl-grpo";
  }
  return has_any(root, kOfTrl) || has_length_of_sft(root) ? "trl" : "transformers";
}

std::string_view why_library(const ConfigNode& root, std::string_view library) {
  if (library == "transformers") return "";
  const bool is_by_length = library == "trl" && !has_any(root, kOfTrl);
  return is_by_length
             ? "by max_seq_length, as TRL's SFTConfig called max_length; for another script: --stack transformers"
             : "by TRL's own arguments";
}

void assume_library(const ConfigNode& root, Draft& draft) {
  if (draft.has(fact::kLibrary)) return;
  const std::string library{library_of(root)}, wanted = draft.get(fact::kWanted).value_or("");
  if (!wanted.empty() && (library == "trl" || library == "transformers")) {
    draft.assume(fact::kLibrary, wanted, "as --stack says");
  } else {
    draft.assume(fact::kLibrary, library, std::string(why_library(root, library)));
  }
}

void read(const ConfigNode& root, const std::string& file, Draft& draft) {
  assume_library(root, draft);
  ConfigNode arguments = root;
  if (is_trl(draft)) read_launch_arguments(arguments, file, draft);
  read_arguments(arguments, file, trl_arguments(), draft);
  if (is_trl(draft)) assume_trl(draft, find_in(root, "lora_task_type") != nullptr);
  draft.assume("micro_batch", "8", "the Trainer's default");
  draft.assume("grad_accum", "1", "the Trainer's default");
  draft.assume("optimizer", "adamw:fused", "the Trainer's default");
  draft.assume("checkpointing", "none", "the Trainer's default");
}

constexpr ConfigTool kTool{"trainer", "arguments of transformers' Trainer or of TRL", score, read};

}  // namespace

void read_arguments(const ConfigNode& map, const std::string& file, const KeyTable& own, Draft& draft) {
  ConfigNode of_trainer, others;
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    ConfigNode single;
    put(single, map.keys[i], map.items[i]);
    const bool is_own = known_keys(single, own) > 0 || known_keys(single, training_arguments()) == 0;
    put(is_own ? others : of_trainer, map.keys[i], map.items[i]);
  }
  read_keys(of_trainer, file, "", training_arguments(), draft);
  read_keys(others, file, "", own, draft);
}

const ConfigTool& trainer_tool() { return kTool; }

}  // namespace vramfit
