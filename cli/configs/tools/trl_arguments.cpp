// trl 1.16, trainer/*_config.py, trainer/model_config.py and scripts/utils.py; names of older ones where they differ.
#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/trainer_keys.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

void read_use_peft(const Setting& setting, Draft& draft) {
  draft.set(fact::kLora, setting.flag() ? "on" : "off", setting);
}
void read_rslora(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("rslora", "on", setting);
  } else {
    draft.understand(setting, "scaled by alpha / rank");
  }
}
void read_nested(const Setting& setting, Draft& draft) {
  draft.set(fact::kNested, setting.flag() ? "on" : "off", setting);
}
/// Parts of a model without anything before their names, of which ".*\.lm_head" says there is something.
constexpr std::array<std::string_view, 3> kOutermost{"lm_head", "embed_out", "score"};

/// "self_attn\.q_proj" is self_attn.q_proj, without a name of anything else.
std::string name_in(std::string_view expression) {
  std::string name;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const bool is_dot = expression.substr(i).starts_with("\\.");
    if (is_dot) ++i;
    const auto c = static_cast<unsigned char>(expression[i]);
    if (!is_dot && std::isalnum(c) == 0 && c != '_') return "";
    name += expression[i];
  }
  return std::ranges::find(kOutermost, name) == kOutermost.end() ? name : "";
}

/// The names that a module's may end with: of ".*\.q_proj" or ".*\.(q_proj|v_proj)". None of other expressions.
std::vector<std::string> endings_of(std::string_view expression) {
  constexpr std::string_view kBegin = ".*\\.";
  if (!expression.starts_with(kBegin)) return {};
  expression.remove_prefix(kBegin.size());
  const bool is_group = expression.size() > 2 && expression.front() == '(' && expression.back() == ')';
  if (is_group) expression = expression.substr(1, expression.size() - 2);
  std::vector<std::string> names = split_list(std::string(expression), '|');
  for (std::string& name : names) name = name_in(name);
  const bool are_names = std::ranges::none_of(names, &std::string::empty);
  return are_names && (is_group || names.size() == 1) ? names : std::vector<std::string>{};
}

/// Of a single text PEFT makes a regular expression over whole names, as TRL makes of a list of one
/// (trainer/model_config.py: __post_init__; peft 0.21, tuners/tuners_utils.py: check_target_module_exists).
void read_target_modules(const Setting& setting, Draft& draft) {
  const ConfigNode& node = *setting.node;
  const std::size_t count = node.is_list() ? node.items.size() : 1;
  const std::string& text = node.is_list() && count == 1 ? node.items.front().text : node.text;
  if (count != 1 || text == "all-linear") return read_lora_targets(setting, draft);
  const std::vector<std::string> names = endings_of(text);
  if (names.empty()) {
    return draft.not_modelled(
        setting,
        "PEFT reads a single text as a regular expression over whole names of modules; a list of names, such as "
        "[q_proj, v_proj], is read, all-linear, or for one name '.*\\.q_proj'");
  }
  draft.set("lora_targets", fmt::format("{}", fmt::join(names, ",")), setting);
}

/// null is no limit (trl 1.16, sft_trainer.py: prepare_dataset), so that rows are as long as the data have them.
void read_length(const Setting& setting, Draft& draft) {
  if (!setting.node->is_null()) return read_count<kSeqLen>(setting, draft);
  draft.set(fact::kAnyLength, "on", setting, "rows are as long as they are in the data; give the longest as --seq-len");
}

void read_loss_type(const Setting& setting, Draft& draft) {
  if (draft.is(fact::kLibrary, "trl-dpo")) {
    if (setting.texts() == std::vector<std::string>{"sigmoid"})
      return draft.understand(setting, "DPOTrainer's default");
    return draft.not_modelled(setting, "a loss of DPOTrainer without rules here");
  }
  if (draft.is(fact::kLibrary, "trl-grpo")) {
    if (setting.is("dapo")) return draft.understand(setting, "GRPOTrainer's default");
    return draft.not_modelled(setting, "a loss of GRPOTrainer without rules here");
  }
  if (setting.is("chunked_nll")) {
    draft.understand(setting, "TRL's chunked loss, as by default");
  } else if (setting.is("nll")) {
    draft.set("loss", "full", setting);
  } else {
    draft.not_modelled(setting, "a loss without rules here");
  }
}

/// How far the log-probabilities may go from the reference's.
void read_beta(const Setting& setting, Draft& draft) {
  if (draft.is(fact::kLibrary, "trl-dpo")) {
    draft.ignore(setting, "no memory depends on it");
  } else if (draft.is(fact::kLibrary, "trl-grpo")) {
    if (setting.is_off()) return draft.understand(setting, "GRPOTrainer without a reference");
    draft.set(fact::kReference, "on", setting, "--grpo reference");
  } else {
    draft.not_modelled(setting,
                       "DPOTrainer and GRPOTrainer have it: \"trl dpo\" or \"trl grpo\" before the file, or --stack "
                       "trl-dpo or trl-grpo");
  }
}

constexpr std::string_view kGeneration =
    "training with generation: GRPOTrainer's step is --stack trl-grpo, and \"vramfit rehearse --recipe trl-grpo\" has "
    "it whole";

/// Completions, behind a prompt of one token.
void read_completion_length(const Setting& setting, Draft& draft) {
  if (!draft.is(fact::kLibrary, "trl-grpo")) return draft.not_modelled(setting, kGeneration);
  draft.set(kSeqLen, std::to_string(setting.whole(1, std::int64_t{1} << 28) + 1), setting);
  draft.note("prompts are counted as one token; if yours are longer, add the difference to --seq-len");
}

/// Of TRL before 1.0. DPOTrainer cut prompts to it within rows of max_length tokens (trl 0.9, trainer/dpo_config.py),
/// GRPOTrainer put completions of max_completion_length behind them.
void read_prompt_length(const Setting& setting, Draft& draft) {
  if (draft.is(fact::kLibrary, "trl-dpo")) {
    draft.ignore(setting, "rows are counted with max_length tokens, of which the prompt is a part");
  } else {
    draft.not_modelled(setting, "older versions of TRL cut prompts to it; leave it out, and add it to --seq-len");
  }
}

/// How often completions are trained on, and for how many micro-batches they are made at once.
template <const std::string_view& Fact>
void read_reuse(const Setting& setting, Draft& draft) {
  if (!draft.is(fact::kLibrary, "trl-grpo")) return draft.not_modelled(setting, kGeneration);
  const std::string count = std::to_string(setting.whole(1, std::int64_t{1} << 20));
  draft.set(Fact, count, setting, fmt::format("--grpo {}={}", Fact, count));
}

/// Of what generates, which isn't counted, and of numbers for each completion or group of them.
void read_generation(const Setting& setting, Draft& draft) {
  if (!draft.is(fact::kLibrary, "trl-grpo")) return draft.not_modelled(setting, kGeneration);
  draft.ignore(setting,
               "a training step without generation is counted; in its memory only some numbers for each completion "
               "depend on this");
}

void read_divergence(const Setting& setting, Draft& draft) {
  if (setting.is("reverse_kl")) {
    draft.understand(setting, "DPOTrainer's default");
  } else {
    draft.not_modelled(setting, "a loss of DPOTrainer without rules here");
  }
}

/// The default of trainers of pairs, without which adapters and GPT-2 keep masks.
void read_dropout(const Setting& setting, Draft& draft) {
  if ((draft.is(fact::kLibrary, "trl-dpo") || draft.is(fact::kLibrary, "trl-reward")) && !setting.flag()) {
    draft.not_modelled(setting, "dropout, which the trainer switches off by default");
  } else {
    draft.ignore(setting, "no memory depends on it");
  }
}

/// PEFT trains the head of scores beside adapters of that kind.
void read_task_type(const Setting& setting, Draft& draft) {
  if (draft.is(fact::kLibrary, "trl-reward") && !setting.is("SEQ_CLS")) {
    draft.not_modelled(setting, "PEFT would leave the random head of scores without training, or adapt it");
  } else {
    draft.understand(setting, "PEFT's kind of model");
  }
}

void read_modules_to_save(const Setting& setting, Draft& draft) {
  if (draft.is(fact::kLibrary, "trl-reward") && setting.texts() == std::vector<std::string>{"score"}) {
    draft.understand(setting, "the head of scores is trained together with the adapters");
  } else {
    draft.not_modelled(setting, "whole modules are trained together with the adapters");
  }
}

void read_centring(const Setting& setting, Draft& draft) {
  draft.ignore(setting, "only some numbers for each pair of rows depend on it");
}

/// The program's own reader has said what it is.
void read_program(const Setting& setting, Draft& draft) { draft.pass_over(setting); }

/// Codes are as large in any dtype; FSDP2 shards those in that of products.
void read_storage_of_codes(const Setting& setting, Draft& draft) {
  const std::string_view says =
      "codes are equally large in any dtype, and FSDP2 shards those stored in the compute dtype";
  draft.set(fact::kCodesDtype, setting.text(), setting, std::string(says));
}

/// SFTTrainer's, by the strategy bfd unless another is named (trl 1.16, trainer/sft_config.py).
void read_packing(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kPacking, "on", setting, "packed, as packing_strategy says; bfd by default: --packing bfd");
  } else {
    draft.understand(setting, "every row is taken as full");
  }
}

/// bfd_split is the same with longer documents cut into several (trl 1.16, data_utils.py: pack_dataset).
void read_strategy(const Setting& setting, Draft& draft) {
  if (setting.is("wrapped")) {
    draft.set(fact::kStrategy, "wrapped", setting, "rows are cut out of all documents: every row is full");
  } else if (setting.is("bfd") || setting.is("bfd_split")) {
    draft.understand(setting, "with packing, a micro-batch is one row of documents");
  } else {
    draft.not_modelled(setting, "a strategy without rules here");
  }
}

void read_init_options(const Setting& setting, Draft& draft);

constexpr std::array kKeys{
    KeyRow{"model_name_or_path", read_model},
    KeyRow{"dtype", read_weights_dtype},
    KeyRow{"torch_dtype", read_weights_dtype},
    KeyRow{"model_init_kwargs", read_init_options},
    KeyRow{"attn_implementation", read_hf_attention},
    KeyRow{"max_length", read_length, true},
    KeyRow{"max_seq_length", read_length},
    KeyRow{"block_size", read_length},
    KeyRow{"model_max_length", read_length},
    KeyRow{"loss_type", read_loss_type},
    KeyRow{"beta", read_beta},
    KeyRow{"f_divergence_type", read_divergence},
    KeyRow{"disable_dropout", read_dropout},
    KeyRow{"max_completion_length", read_completion_length},
    KeyRow{"max_prompt_length", read_prompt_length},
    KeyRow{"num_iterations", read_reuse<fact::kIterations>},
    KeyRow{"steps_per_generation", read_reuse<fact::kGeneration>},
    KeyRow{"num_generations", read_generation},
    KeyRow{"temperature", read_generation},
    KeyRow{"top_p", read_generation},
    KeyRow{"top_k", read_generation},
    KeyRow{"min_p", read_generation},
    KeyRow{"repetition_penalty", read_generation},
    KeyRow{"reward_funcs", read_generation},
    KeyRow{"reward_weights", read_generation},
    KeyRow{"epsilon", read_generation},
    KeyRow{"epsilon_high", read_generation},
    KeyRow{"center_rewards_coefficient", read_centring},
    KeyRow{"lora_task_type", read_task_type},
    KeyRow{"lora_modules_to_save", read_modules_to_save},
    KeyRow{"trl", read_program},
    KeyRow{"packing", read_packing},
    KeyRow{"packing_strategy", read_strategy},
    KeyRow{"use_peft", read_use_peft},
    KeyRow{"lora_r", read_count<kLoraRank>},
    KeyRow{"lora_alpha", read_lora_alpha},
    KeyRow{"lora_dropout", read_lora_dropout},
    KeyRow{"lora_target_modules", read_target_modules},
    KeyRow{"use_rslora", read_rslora},
    KeyRow{"use_dora", read_dora},
    KeyRow{"load_in_4bit", read_load_in_4bit},
    KeyRow{"load_in_8bit", read_load_in_8bit},
    KeyRow{"use_bnb_nested_quant", read_nested},
    KeyRow{"bnb_4bit_quant_storage", read_storage_of_codes},
};
constexpr std::array kInitKeys{
    KeyRow{"dtype", read_weights_dtype},
    KeyRow{"torch_dtype", read_weights_dtype},
    KeyRow{"attn_implementation", read_hf_attention},
};
constexpr std::array kInitOthers{
    UnmodelledKeys{"where the model's parts lie", "device_map"},
    UnmodelledKeys{"weights that are quantized by the model's configuration", "quantization_config"},
};
constexpr std::array kInitIgnored{IgnoredKeys{
    "affects only loading", "low_cpu_mem_usage trust_remote_code use_cache revision cache_dir token local_files_only"}};
constexpr KeyTable kInitTable{"model_init_kwargs", kInitKeys, kInitOthers, kInitIgnored};
void read_init_options(const Setting& setting, Draft& draft) { read_keys(setting, kInitTable, draft); }

constexpr std::array kOthers{
    UnmodelledKeys{"rows without padding, which need different memory", "padding_free"},
    UnmodelledKeys{"activations in host memory", "activation_offloading"},
    UnmodelledKeys{"adapters of parameters that don't belong to a linear layer", "lora_target_parameters"},
    UnmodelledKeys{"codes of another kind than NF4", "bnb_4bit_quant_type", "nf4"},
    UnmodelledKeys{"preference training other than by DPOTrainer's defaults (vramfit rehearse can run the script)",
                   "precompute_ref_log_probs precompute_ref_batch_size ref_model_init_kwargs "
                   "ref_model_name_or_path ref_adapter_name rpo_alpha ld_alpha loss_weights use_weighting "
                   "desirable_weight undesirable_weight simpo_gamma cpo_alpha"},
    UnmodelledKeys{"a reference model that follows the trained one", "sync_ref_model"},
    UnmodelledKeys{kGeneration,
                   "generation_batch_size use_vllm vllm_* "
                   "reward_model_name_or_path delta scale_rewards num_ppo_epochs response_length kl_coef "
                   "whiten_rewards missing_eos_penalty total_episodes num_mini_batches"},
    UnmodelledKeys{"GRPOTrainer other than by its defaults",
                   "importance_sampling_level mask_truncated_completions top_entropy_quantile entropy_coef "
                   "use_adaptive_entropy off_policy_mask_threshold cast_lm_head_to_fp32 multi_objective_aggregation"},
    UnmodelledKeys{"GRPOTrainer's divergence without its usual factor", "use_bias_correction_kl", "true"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"every row is taken as full",
                "pad_to_multiple_of truncation_mode eval_packing pad_token eos_token "
                "completion_only_loss assistant_only_loss dataset_kwargs shuffle_dataset ignore_bias_buffers"},
    IgnoredKeys{"which data there are",
                "dataset_* datasets streaming test_split_size chat_template_path trust_remote_code "
                "config_name tokenizer_name train_file validation_file"},
    IgnoredKeys{"affects only generation, which isn't counted",
                "num_generations_eval ds3_gather_for_generation chat_template_kwargs cache_implementation "
                "max_tool_calling_iterations use_transformers_* transformers_continuous_batching_config"},
    IgnoredKeys{"no memory depends on it",
                "label_smoothing sapo_* vespo_* entropy_coef_* entropy_target log_completions* log_multimodal "
                "log_unique_prompts "
                "num_completions_to_print normalize_advantages reward_clip_range f_alpha_divergence_coef discopop_tau "
                "ref_model_mixup_alpha ref_model_sync_steps "
                "model_revision router_aux_loss_coef cache_dir token"},
};
constexpr KeyTable kTable{"TRL's and the Trainer's arguments", kKeys, kOthers, kIgnored};

}  // namespace

const KeyTable& trl_arguments() { return kTable; }

}  // namespace vramfit
