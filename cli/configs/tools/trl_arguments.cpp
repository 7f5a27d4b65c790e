// trl 1.16, trainer/*_config.py, trainer/model_config.py and scripts/utils.py; names of older ones where they differ.
#include <array>

#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/trainer_keys.h"

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
/// max_length: null is no limit, and is as if it weren't there.
void read_length(const Setting& setting, Draft& draft) { read_count<kSeqLen>(setting, draft); }

constexpr std::string_view kDpoAlone =
    "a trainer of preferences has it; DPOTrainer's is \"trl dpo\", or a file with f_divergence_type: reverse_kl";

void read_loss_type(const Setting& setting, Draft& draft) {
  if (draft.is(fact::kLibrary, "trl-dpo")) {
    if (setting.texts() == std::vector<std::string>{"sigmoid"})
      return draft.understand(setting, "DPOTrainer's default");
    return draft.not_modelled(setting, "a loss of DPOTrainer without rules here");
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
  } else {
    draft.not_modelled(setting, kDpoAlone);
  }
}

void read_divergence(const Setting& setting, Draft& draft) {
  if (setting.is("reverse_kl")) {
    draft.understand(setting, "DPOTrainer's default");
  } else {
    draft.not_modelled(setting, "a loss of DPOTrainer without rules here");
  }
}

/// DPOTrainer's default, without which adapters and GPT-2 keep masks.
void read_dropout(const Setting& setting, Draft& draft) {
  if (draft.is(fact::kLibrary, "trl-dpo") && !setting.flag()) {
    draft.not_modelled(setting, "DPOTrainer with dropout");
  } else {
    draft.ignore(setting, "no memory depends on it");
  }
}

/// The program's own reader has said what it is.
void read_program(const Setting& /*setting*/, Draft& /*draft*/) {}

/// Codes are as large in any dtype; FSDP2 shards those in that of products.
void read_storage_of_codes(const Setting& setting, Draft& draft) {
  const std::string_view says = "codes are as large in any dtype, and FSDP2 shards those in that of products";
  draft.set(fact::kCodesDtype, setting.text(), setting, std::string(says));
}

void read_packing(const Setting& setting, Draft& draft) {
  draft.ignore(setting, "every row is taken as full, packed or not");
}

void read_init_options(const Setting& setting, Draft& draft);

constexpr std::array kKeys{
    KeyRow{"model_name_or_path", read_model},
    KeyRow{"dtype", read_weights_dtype},
    KeyRow{"torch_dtype", read_weights_dtype},
    KeyRow{"model_init_kwargs", read_init_options},
    KeyRow{"attn_implementation", read_hf_attention},
    KeyRow{"max_length", read_length},
    KeyRow{"max_seq_length", read_length},
    KeyRow{"block_size", read_length},
    KeyRow{"loss_type", read_loss_type},
    KeyRow{"beta", read_beta},
    KeyRow{"f_divergence_type", read_divergence},
    KeyRow{"disable_dropout", read_dropout},
    KeyRow{"trl", read_program},
    KeyRow{"packing", read_packing},
    KeyRow{"use_peft", read_use_peft},
    KeyRow{"lora_r", read_count<kLoraRank>},
    KeyRow{"lora_alpha", read_lora_alpha},
    KeyRow{"lora_dropout", read_lora_dropout},
    KeyRow{"lora_target_modules", read_lora_targets},
    KeyRow{"use_rslora", read_rslora},
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
constexpr std::array kInitIgnored{
    IgnoredKeys{"decides about loading alone",
                "low_cpu_mem_usage trust_remote_code use_cache revision cache_dir token local_files_only"}};
constexpr KeyTable kInitTable{"model_init_kwargs", kInitKeys, kInitOthers, kInitIgnored};
void read_init_options(const Setting& setting, Draft& draft) { read_keys(setting, kInitTable, draft); }

constexpr std::array kOthers{
    UnmodelledKeys{"a memory of its own for rows without padding", "padding_free"},
    UnmodelledKeys{"activations in host memory", "activation_offloading"},
    UnmodelledKeys{"whole modules are trained beside the adapters", "lora_modules_to_save"},
    UnmodelledKeys{"adapters of parameters that are no linear's", "lora_target_parameters"},
    UnmodelledKeys{"DoRA", "use_dora"},
    UnmodelledKeys{"codes of another kind than NF4", "bnb_4bit_quant_type", "nf4"},
    UnmodelledKeys{
        "preference training otherwise than DPOTrainer's defaults (vramfit rehearse of the script has it)",
        "precompute_ref_log_probs precompute_ref_batch_size max_prompt_length ref_model_init_kwargs "
        "ref_model_name_or_path ref_adapter_name sync_ref_model rpo_alpha ld_alpha loss_weights use_weighting "
        "desirable_weight undesirable_weight simpo_gamma cpo_alpha"},
    UnmodelledKeys{"only \"vramfit rehearse --recipe trl-grpo\" has training with generation",
                   "num_generations max_completion_length generation_batch_size steps_per_generation use_vllm "
                   "vllm_* num_iterations reward_funcs reward_weights reward_model_name_or_path temperature top_p "
                   "top_k min_p repetition_penalty epsilon epsilon_high delta scale_rewards num_ppo_epochs "
                   "response_length kl_coef whiten_rewards missing_eos_penalty total_episodes num_mini_batches"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"every row is taken as full",
                "pad_to_multiple_of truncation_mode packing_strategy eval_packing pad_token eos_token "
                "completion_only_loss assistant_only_loss dataset_kwargs shuffle_dataset ignore_bias_buffers"},
    IgnoredKeys{"which data there are",
                "dataset_* datasets streaming test_split_size chat_template_path trust_remote_code "
                "config_name tokenizer_name train_file validation_file"},
    IgnoredKeys{"no memory depends on it",
                "f_alpha_divergence_coef discopop_tau ref_model_mixup_alpha ref_model_sync_steps "
                "model_revision router_aux_loss_coef lora_task_type cache_dir token "
                "center_rewards_coefficient accelerate_config"},
};
constexpr KeyTable kTable{"TRL's and the Trainer's arguments", kKeys, kOthers, kIgnored};

}  // namespace

const KeyTable& trl_arguments() { return kTable; }

}  // namespace vramfit
