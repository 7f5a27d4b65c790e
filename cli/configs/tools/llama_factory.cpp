// LLaMA-Factory's arguments (0.9.5, hparams/*.py), beside those of transformers' Trainer, which it trains with.
#include <array>

#include <fmt/format.h>

#include "cli/configs/tools.h"
#include "cli/configs/tools/liger.h"
#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/trainer_keys.h"

namespace vramfit {
namespace {

void read_stage(const Setting& setting, Draft& draft) {
  if (setting.is("sft") || setting.is("pt")) {
    draft.understand(setting, "the usual loss over tokens");
  } else {
    draft.not_modelled(setting, "preference training, a reward model, or training with generation");
  }
}
void read_method(const Setting& setting, Draft& draft) {
  if (setting.is("full")) {
    draft.set(fact::kLora, "off", setting);
  } else if (setting.is("lora")) {
    draft.set(fact::kLora, "on", setting);
  } else {
    draft.derive(fact::kLora, "off");  // not LLaMA-Factory's default
    draft.not_modelled(setting, "a way of fine-tuning without rules here");
  }
}
void read_no_checkpointing(const Setting& setting, Draft& draft) {
  draft.set("checkpointing", setting.flag() ? "none" : "full", setting);
}
void read_bits(const Setting& setting, Draft& draft) {
  if (setting.is("4") || setting.is("8")) {
    draft.set(fact::kBits, setting.text(), setting);
  } else {
    draft.not_modelled(setting, "weights of so many bits");
  }
}
void read_nested(const Setting& setting, Draft& draft) {
  draft.set(fact::kNested, setting.flag() ? "on" : "off", setting);
}
void read_pure(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kWeights, "bf16", setting);
  } else {
    draft.understand(setting, "trained weights are converted to fp32");
  }
}
/// The Trainer's own switches: where it is on, the Trainer enables checkpoints a second time, through LLaMA-Factory's
/// patch (model/model_utils/checkpointing.py), with its own options.
void read_trainers_checkpointing(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kTrainersCheckpoints, "on", setting, "LLaMA-Factory checkpoints by default, too");
  } else {
    draft.ignore(setting, "LLaMA-Factory checkpoints unless disable_gradient_checkpointing says otherwise");
  }
}
void read_trainers_options(const Setting& setting, Draft& draft) {
  draft.derive(fact::kCheckpointOptions, "on");
  draft.ignore(setting, "only read with gradient_checkpointing: true; LLaMA-Factory's own key is use_reentrant_gc");
}
/// model/model_utils/checkpointing.py; on by default, and off where accelerate's launcher starts FSDP2.
void read_reentrant_gc(const Setting& setting, Draft& draft) {
  draft.set(fact::kFactoryReentrant, setting.flag() ? "on" : "off", setting, "whether checkpoints re-enter autograd");
}
/// train/sft/workflow.py and its like: without do_train, a file evaluates or predicts.
void read_task(const Setting& setting, Draft& draft) {
  if (setting.flag()) draft.derive(fact::kOtherTask, setting.key);
  draft.ignore(setting, "what the program does beside training");
}
void read_training_task(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kTrains, "on", setting, "it trains");
  } else {
    draft.not_modelled(setting, "no training");
  }
}
void read_packing(const Setting& setting, Draft& draft) {
  draft.ignore(setting, "every row is taken as full, packed or not");
}

void read_neat_packing(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kPacking, "one row", setting, "documents share rows, and each sees itself alone: --packing bfd");
  } else {
    draft.understand(setting, "every row is taken as full");
  }
}

constexpr std::array kKeys{
    KeyRow{"model_name_or_path", read_model},
    KeyRow{"stage", read_stage},
    KeyRow{"finetuning_type", read_method},
    KeyRow{"cutoff_len", read_count<kSeqLen>},
    KeyRow{"lora_rank", read_count<kLoraRank>},
    KeyRow{"lora_alpha", read_lora_alpha},
    KeyRow{"lora_dropout", read_lora_dropout},
    KeyRow{"lora_target", read_lora_targets},
    KeyRow{"use_rslora", read_rslora},
    KeyRow{"quantization_bit", read_bits},
    KeyRow{"double_quantization", read_nested},
    KeyRow{"pure_bf16", read_pure},
    KeyRow{"flash_attn", read_hf_attention},
    KeyRow{"disable_gradient_checkpointing", read_no_checkpointing},
    KeyRow{"use_reentrant_gc", read_reentrant_gc},
    KeyRow{"gradient_checkpointing", read_trainers_checkpointing},
    KeyRow{"activation_checkpointing", read_trainers_checkpointing},
    KeyRow{"gradient_checkpointing_kwargs", read_trainers_options},
    KeyRow{"activation_checkpointing_kwargs", read_trainers_options},
    KeyRow{"packing", read_packing},
    KeyRow{"neat_packing", read_neat_packing},
    KeyRow{"use_dora", read_dora},
    KeyRow{"do_train", read_training_task},
    KeyRow{"do_eval", read_task},
    KeyRow{"do_predict", read_task},
    KeyRow{"enable_liger_kernel", read_liger},
};
constexpr std::array kOthers{
    UnmodelledKeys{"Unsloth's kernels", "use_unsloth use_unsloth_gc"},
    UnmodelledKeys{"an optimizer without rules here", "use_galore use_apollo use_badam use_adam_mini use_muon"},
    UnmodelledKeys{"a way of fine-tuning without rules here",
                   "use_llama_pro mixture_of_depths shift_attn additional_target pissa_init "
                   "freeze_trainable_layers freeze_trainable_modules freeze_extra_modules loraplus_lr_ratio"},
    UnmodelledKeys{"a loss without rules here", "use_dft_loss use_asft_loss use_eaft_loss"},
    UnmodelledKeys{"another way to quantize", "quantization_method", "bnb"},
    UnmodelledKeys{"codes of another kind than NF4", "quantization_type", "nf4"},
    UnmodelledKeys{"FP8", "fp8"},
    UnmodelledKeys{"norms in fp32", "upcast_layernorm"},
    UnmodelledKeys{"logits in fp32", "upcast_lmhead_output"},
    UnmodelledKeys{"other parallelism, or weights on the CPU",
                   "use_mca use_hyper_parallel use_megatron_bridge use_kt cp_size context_parallel_size "
                   "hyper_parallel_cp_size tensor_model_parallel_size pipeline_model_parallel_size "
                   "expert_model_parallel_size",
                   "1"},
    UnmodelledKeys{"belongs to LLaMA-Factory's second implementation (v1), which has its own batches and training loop",
                   "dist_config model_class peft_config quant_config micro_batch_size batching_strategy optim_config "
                   "train_dataset mixed_precision init_config sample_backend kernel_config use_v1_kernels"},
    UnmodelledKeys{"preference training with a loss of its own", "pref_ftx"},
    UnmodelledKeys{"where the model's parts lie", "device_map quantization_device_map"},
};
constexpr std::array kIgnored{
    IgnoredKeys{
        "which data and which template",
        "template dataset dataset_dir eval_dataset media_dir train_on_prompt mask_history streaming buffer_size "
        "mix_strategy interleave_probs overwrite_cache preprocessing_* max_samples tokenized_path val_size "
        "data_shared_file_system enable_thinking default_system tool_format ignore_pad_token_for_loss "
        "image_* video_* audio_* use_audio_in_video crop_to_patches preserve_thinking model_max_length"},
    IgnoredKeys{"what the model is called, and how it is loaded",
                "trust_remote_code adapter_name_or_path adapter_folder cache_dir model_revision use_fast_tokenizer "
                "resize_vocab split_special_tokens add_tokens add_special_tokens hf_hub_token low_cpu_mem_usage "
                "rope_scaling create_new_adapter pissa_* model infer_backend print_param_status init_special_tokens "
                "train_from_scratch ms_hub_token om_hub_token"},
    IgnoredKeys{"belongs to other stages than sft and pt, and is read with those alone",
                "dpo_* kto_* ppo_* pref_bco_weight simpo_gamma ld_alpha ref_model* reward_model*"},
    IgnoredKeys{"belongs to Megatron, and is read with use_mca or use_megatron_bridge alone",
                "sequence_parallel bias_activation_fusion apply_rope_fusion use_distributed_optimizer "
                "overlap_param_gather overlap_grad_reduce moe_grouped_gemm moe_token_dispatcher_type "
                "recompute_granularity use_packed_sequences megatron_bridge_args hyper_parallel_args"},
    IgnoredKeys{"belongs to context parallelism of the second implementation", "cp_mode"},
    IgnoredKeys{"evaluation and inference are no part of an estimate",
                "offload_folder use_kv_cache infer_dtype do_sample temperature top_p top_k num_beams max_length "
                "repetition_penalty length_penalty skip_special_tokens task task_dir batch_size lang n_shot "
                "download_mode"},
    IgnoredKeys{"LLaMA-Factory sets it itself", "compute_dtype block_diag_attn _kt_*"},
    IgnoredKeys{"no memory depends on it",
                "plot_loss pref_beta pref_loss early_stopping_steps disable_shuffling asft_alpha eaft_alpha "
                "freeze_vision_tower freeze_multi_modal_projector freeze_language_model compute_accuracy "
                "moe_aux_loss_coef new_special_tokens_config "
                "loraplus_lr_embedding max_new_tokens module_dropout include_effective_tokens_per_second "
                "profile_modules"},
    IgnoredKeys{"belongs to a method that a key of its own switches on", "galore_* apollo_* badam_* fp8_* kt_* oft_*"},
    IgnoredKeys{"what is logged, and where the program runs",
                "swanlab_* use_swanlab ray_* master_addr master_port enable_torch_profiler profiler_* export_* "
                "vllm_* sglang_*"},
};
constexpr KeyTable kTable{"LLaMA-Factory", kKeys, kOthers, kIgnored};

int score(const ConfigNode& root) {
  for (const std::string_view key : {"finetuning_type", "cutoff_len", "stage"}) {
    if (find_in(root, key) != nullptr) return kSure;
  }
  return 0;
}

void read(const ConfigNode& root, const std::string& file, Draft& draft) {
  draft.assume(fact::kLibrary, "transformers", "LLaMA-Factory trains with its Trainer");
  read_arguments(root, file, kTable, draft);
  if (const auto other = draft.get(fact::kOtherTask); other && !draft.is(fact::kTrains, "on")) {
    draft.not_modelled(fmt::format("no training: {} without do_train", *other));
  }
  draft.assume(fact::kLora, "on", "LLaMA-Factory's default");
  draft.assume("checkpointing", "full", "LLaMA-Factory's default");
  draft.assume(fact::kFactoryReentrant, "on", "LLaMA-Factory's default");
  draft.assume("seq_len", "2048", "LLaMA-Factory's default");
  draft.assume("micro_batch", "8", "the Trainer's default");
  draft.assume("grad_accum", "1", "the Trainer's default");
  draft.assume("optimizer", "adamw:fused", "the Trainer's default");
  if (!draft.is(fact::kLora, "on")) return;
  draft.assume(fact::kFindsUnused, "off", "LLaMA-Factory's with LoRA");  // hparams/parser.py: get_train_args
  // hparams/finetuning_args.py and model_args.py; the base is loaded in the compute dtype (model/loader.py).
  draft.assume("lora_rank", "8", "LLaMA-Factory's default");
  draft.assume("lora_alpha", fmt::format("{}", 2 * std::stoll(draft.get("lora_rank").value())), "twice the rank");
  draft.assume("lora_targets", "all-linear", "LLaMA-Factory's default");
  if (draft.has(fact::kBits)) draft.assume(fact::kNested, "on", "LLaMA-Factory's default");
  if (draft.has(fact::kMixedHere)) draft.assume(fact::kWeights, *draft.get(fact::kMixedHere), "the frozen base's");
}

constexpr ConfigTool kTool{.name = "llama_factory",
                           .what = "LLaMA-Factory's arguments",
                           .score = score,
                           .read = read,
                           .program = "llamafactory-cli train",
                           .rank = "python -m llamafactory.launcher"};

}  // namespace

const ConfigTool& llama_factory_tool() { return kTool; }

}  // namespace vramfit
