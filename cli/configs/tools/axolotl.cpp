// axolotl's YAML (0.19, utils/schemas/config.py and its parts). It trains with transformers' Trainer.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cli/configs/tools.h"
#include "cli/configs/tools/axolotl_defaults.h"
#include "cli/configs/tools/axolotl_kernels.h"
#include "cli/configs/tools/liger.h"
#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/trainer_keys.h"

namespace vramfit {
namespace {

/// true and "full" are autocast over weights in bf16; so is "auto", the default, on cards that have bf16.
void read_axolotl_bf16(const Setting& setting, Draft& draft) {
  if (setting.is("auto")) {
    draft.understand(setting, "bf16 on cards of Ampere and later, unless fp16 is asked for");
  } else if (setting.is("full") || setting.flag()) {
    draft.set(fact::kMixedHere, "bf16", setting);
  } else {
    draft.set(fact::kBf16Off, "off", setting, "no bf16 by this key");
  }
}
/// With bf16: false, weights in bf16 without autocast; bf16 has them, too.
void read_pure(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kWeights, "bf16", setting);
  } else {
    draft.understand(setting, "off");
  }
}
void read_pure_fp16(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.not_modelled(setting, "training in fp16 without autocast");
  } else {
    draft.understand(setting, "off");
  }
}

void read_adapter(const Setting& setting, Draft& draft) {
  if (setting.is_off()) {
    draft.understand(setting, "all weights are trained");
  } else if (setting.is("lora") || setting.is("qlora")) {
    draft.set(fact::kLora, "on", setting);
  } else {
    draft.not_modelled(setting, "adapters without rules here");
  }
}
void read_target_linear(const Setting& setting, Draft& draft) {
  if (!setting.flag()) {
    draft.understand(setting, "as lora_target_modules says");
    return;
  }
  draft.forget("lora_targets");
  draft.set("lora_targets", "all-linear", setting, "--lora-targets all-linear");
}
/// lora_target_linear comes first, whatever else is listed.
void read_target_modules(const Setting& setting, Draft& draft) {
  if (draft.has("lora_targets")) {
    draft.understand(setting, "all linears have adapters anyway");
  } else if (setting.node->is_scalar() && !setting.is("all-linear")) {
    draft.not_modelled(setting, "a pattern over names");  // a regular expression
  } else {
    read_lora_targets(setting, draft);
  }
}

void read_gradient_checkpointing(const Setting& setting, Draft& draft) {
  if (setting.is("offload") || setting.is("offload_disk") || setting.is("unsloth")) {
    draft.not_modelled(setting, "activations in host memory");
  } else {
    read_checkpointing(setting, draft);
  }
}

/// core/builders/causal.py: without it, whether DDP looks for unused parameters is the Trainer's to say.
void read_ddp_switch(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.understand(setting, "what axolotl has by default on several GPUs");
  } else {
    draft.set(fact::kAxolotlsDdp, "off", setting, "the Trainer decides whether DDP looks for unused parameters");
  }
}

void read_flash(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("attention", "flash-attn", setting);
  } else {
    draft.understand(setting, "another attention");
  }
}
void read_sdp(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("attention", "auto", setting);
  } else {
    draft.understand(setting, "another attention");
  }
}
void read_eager(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("attention", "math", setting);
  } else {
    draft.understand(setting, "another attention");
  }
}
void read_padding(const Setting& setting, Draft& draft) {
  draft.ignore(setting, "every row is taken as full, packed or not");
}
/// Positions need no memory of their own; what else is changed may.
void read_model_overrides(const Setting& setting, Draft& draft) {
  constexpr std::array<std::string_view, 4> kPositions{"rope_scaling", "rope_theta", "rope_parameters",
                                                       "max_position_embeddings"};
  const bool is_of_positions = std::ranges::all_of(setting.node->keys, [&](const std::string& key) {
    return std::ranges::find(kPositions, key) != kPositions.end();
  });
  if (setting.is_off() || (setting.node->is_map() && is_of_positions)) {
    draft.ignore(setting, "no memory depends on how positions are computed");
  } else {
    draft.not_modelled(setting, "the model's own configuration is changed");
  }
}

void read_fsdp_words(const Setting& setting, Draft& draft) {
  if (setting.is_off()) {
    draft.ignore(setting, "off");
    return;
  }
  if (!draft.is(fact::kParallel, "fsdp")) draft.set(fact::kParallel, "fsdp", setting);
}
void read_fsdp_map(const Setting& setting, Draft& draft) {
  if (!draft.is(fact::kParallel, "fsdp")) draft.set(fact::kParallel, "fsdp", setting);
  read_fsdp(setting, 1, draft);
}
/// In place of the version that its fsdp keys mean without this one.
void read_own_fsdp_version(const Setting& setting, Draft& draft) {
  draft.forget(fact::kFsdpVersion);
  read_fsdp_version(setting, draft);
}

/// Rows of a GPU in a step (utils/config/__init__.py: normalize_config); accumulation is derived from it.
void read_batch_size(const Setting& setting, Draft& draft) {
  draft.set(fact::kStepRows, std::to_string(setting.whole(1, std::int64_t{1} << 28)), setting,
            "rows of a GPU in a step: micro_batch_size times gradient_accumulation_steps");
}

constexpr std::array kKeys{
    KeyRow{"max_grad_norm", read_clipped_norm},
    KeyRow{"base_model", read_model},
    KeyRow{"lora_target_linear", read_target_linear},
    KeyRow{"lora_target_modules", read_target_modules},
    KeyRow{"sequence_len", read_count<kSeqLen>},
    KeyRow{"micro_batch_size", read_count<kMicroBatch>},
    KeyRow{"gradient_accumulation_steps", read_count<kGradAccum>},
    KeyRow{"batch_size", read_batch_size},
    KeyRow{"bf16", read_axolotl_bf16},
    KeyRow{"fp16", read_fp16},
    KeyRow{"bfloat16", read_pure},
    KeyRow{"float16", read_pure_fp16},
    KeyRow{"optimizer", read_hf_optimizer},
    KeyRow{"optim_args", read_optimizer_arguments},
    KeyRow{"weight_decay", read_weight_decay},
    KeyRow{"adapter", read_adapter},
    KeyRow{"load_in_4bit", read_load_in_4bit},
    KeyRow{"load_in_8bit", read_load_in_8bit},
    KeyRow{"lora_r", read_count<kLoraRank>},
    KeyRow{"lora_alpha", read_lora_alpha},
    KeyRow{"lora_dropout", read_lora_dropout},
    KeyRow{"peft_use_rslora", read_rslora},
    KeyRow{"peft_use_dora", read_dora},
    KeyRow{"lora_mlp_kernel", read_adapter_kernel},
    KeyRow{"lora_qkv_kernel", read_adapter_kernel},
    KeyRow{"lora_o_kernel", read_adapter_kernel},
    KeyRow{"lora_embedding_kernel", read_adapter_kernel},
    KeyRow{"trust_remote_code", read_remote_code},
    KeyRow{"gradient_checkpointing", read_gradient_checkpointing},
    KeyRow{"gradient_checkpointing_kwargs", read_checkpointing_options},
    KeyRow{"ddp", read_ddp_switch},
    KeyRow{"ddp_find_unused_parameters", read_ddp},
    KeyRow{"ddp_bucket_cap_mb", read_ddp},
    KeyRow{"ddp_broadcast_buffers", read_ddp},
    KeyRow{"attn_implementation", read_hf_attention},
    KeyRow{"flash_attention", read_flash},
    KeyRow{"sdp_attention", read_sdp},
    KeyRow{"eager_attention", read_eager},
    KeyRow{"sample_packing", read_packed_documents},
    KeyRow{"pad_to_sequence_len", read_padding},
    KeyRow{"overrides_of_model_config", read_model_overrides},
    KeyRow{"deepspeed", read_deepspeed},
    KeyRow{"fsdp", read_fsdp_words},
    KeyRow{"fsdp_config", read_fsdp_map},
    KeyRow{"fsdp_version", read_own_fsdp_version},
    KeyRow{"dp_shard_size", read_shards},
    KeyRow{"dp_replicate_size", read_replicas},
    KeyRow{"plugins", read_plugins},
    KeyRow{"liger_rope", read_axolotls_liger},
    KeyRow{"liger_rms_norm", read_axolotls_liger},
    KeyRow{"liger_glu_activation", read_axolotls_liger},
    KeyRow{"liger_swiglu", read_axolotls_liger},
    KeyRow{"liger_cross_entropy", read_axolotls_liger},
    KeyRow{"liger_fused_linear_cross_entropy", read_axolotls_liger},
};
constexpr std::array kOthers{
    UnmodelledKeys{"Liger's kernels of another kind, or its loss with scaled tokens",
                   "liger_kernel_impl liger_use_token_scaling"},
    UnmodelledKeys{"a loss that never has all logits",
                   "cut_cross_entropy chunked_cross_entropy flash_attn_cross_entropy chunked_cross_entropy_num_chunks"},
    UnmodelledKeys{"MLPs computed in tiles", "tiled_mlp"},
    UnmodelledKeys{"kernels without rules here",
                   "use_kernels unsloth_* "
                   "flash_attn_fuse_mlp flash_attn_fuse_qkv flash_attn_rms_norm use_scattermoe use_sonicmoe "
                   "fused_attn_kernel experts_implementation flash_optimum use_onebitllms use_dsv4_kernels dsv4_* "
                   "use_glm_dsa_kernels gemma4_hybrid_attn_impl expert_backend moe_bnb_fast moe_grouped_backend "
                   "large_head_attention flash_attn_d512 dense_mixer"},
    UnmodelledKeys{"attention without rules here",
                   "xformers_attention flex_attention sage_attention s2_attention sdpa_varlen scaling_softmax"},
    UnmodelledKeys{"activations or parameters in host memory",
                   "activation_offloading layer_offloading ple_cpu_offload"},
    UnmodelledKeys{"preference training or training with generation",
                   "rl trl orpo_alpha cpo_alpha rpo_alpha reward_model process_reward_model rl_beta kto_* "
                   "precompute_ref_log_probs dpo_* simpo_* vllm ebft nemo_gym_* hatchery use_eaft eaft_* "
                   "center_rewards_coefficient generate_samples"},
    UnmodelledKeys{"a loss that keeps a teacher's logits", "kd_trainer"},
    UnmodelledKeys{"some parameters are frozen by name", "unfrozen_parameters spectrum_*"},
    UnmodelledKeys{"averages of gradients are kept beside the optimizer", "grokfast_*"},
    UnmodelledKeys{"rows without padding, which need different memory", "batch_flattening"},
    UnmodelledKeys{"rows that are packed one by one, where axolotl usually makes one of a micro-batch",
                   "multipack_real_batches"},
    UnmodelledKeys{"the allocator's cache is emptied now and then", "torch_empty_cache_steps gc_steps"},
    UnmodelledKeys{"the batch is made smaller until it fits", "auto_find_batch_size"},
    UnmodelledKeys{"a trainer of its own", "trainer_cls"},
    UnmodelledKeys{"other keywords than axolotl's to load the model with", "overrides_of_model_kwargs"},
    UnmodelledKeys{"only data parallelism is modelled",
                   "tensor_parallel_size context_parallel_size sequence_parallel_degree expert_parallel_*", "1"},
    UnmodelledKeys{"torch.compile", "torch_compile deepcompile"},
    UnmodelledKeys{"FP8, or quantization of another kind",
                   "fp8 fp8_* llmcompressor qat quantize_moe_experts gptq gptq_model_v1 bnb_config_kwargs "
                   "model_quantization_config nvfp4_merge_aware nonexpert_quantization "
                   "gemma4_fp8_nonexpert gemma4_nf4_nonexpert"},
    UnmodelledKeys{"whole modules are trained together with the adapters", "lora_modules_to_save"},
    UnmodelledKeys{"adapters of another form",
                   "lora_target_parameters lora_fan_in_fan_out loftq peft lora_alpha_pattern lora_rank_pattern "
                   "peft_layers_to_transform peft_layers_pattern peft_layer_replication peft_trainable_token_indices "
                   "peft_ensure_weight_tying mora relora relora_* loraplus_lr_ratio"},
    UnmodelledKeys{"adapters that are initialized, or kept, in another way",
                   "peft_init_lora_weights peft_autocast_adapter_dtype", "true"},
    UnmodelledKeys{"embeddings in another dtype than axolotl usually has beside adapters", "embeddings_skip_upcast"},
    UnmodelledKeys{"noise on the embeddings, in fp32", "neftune_noise_alpha noisy_embedding_alpha"},
    UnmodelledKeys{"checkpointing of another kind", "selective_checkpointing"},
    UnmodelledKeys{"layers that take turns", "lisa_* badam"},
    UnmodelledKeys{"a model of another kind",
                   "llama4_linearized_experts is_multimodal processor_type diffusion num_labels"},
    UnmodelledKeys{"where the model's parts lie", "device_map max_memory gpu_memory_limit"},
    UnmodelledKeys{"norms in fp32", "fp32_norms"},
    UnmodelledKeys{"weights in fp32 whatever else is asked for", "float32"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"no memory depends on it",
                "output_dir learning_rate lr_scheduler lr_* num_epochs max_steps warmup_* adam_* seed "
                "cosine_* train_on_inputs strict tf32 loss_watchdog_* early_stopping_patience "
                "optim_target_modules embedding_lr* group_by_length curriculum_sampling eta_min "
                "jagged_restart_* lora_model_dir torch_compile_* flex_attn_compile_kwargs gc_collect_steps "
                "use_pose pose_*"},
    IgnoredKeys{"belongs to what another key switches on, and is read with that alone",
                "qgalore_* dion_* kd_* generation_* num_generation_samples loraplus_lr_embedding fp32_norm_classes "
                "tiled_mlp_* scaling_softmax_* moe_dequant_chunk_size nvfp4_merge_aware_start_step max_prompt_len "
                "ring_attn_func heads_k_stride image_resize_algorithm"},
    IgnoredKeys{"affects only loading, merging and what is done after training",
                "qlora_sharded_model_loading fix_untrained_tokens lora_on_cpu merge_lora merge_method quantization"},
    IgnoredKeys{"axolotl sets it itself",
                "axolotl_config_path device torch_dtype is_preprocess world_size total_supervised_tokens"},
    IgnoredKeys{"models that have rules here have no such layers", "liger_layer_norm liger_rms_norm_gated"},
    IgnoredKeys{"which model class, tokenizer and data",
                "model_type tokenizer_* datasets test_datasets pretraining_dataset dataset_* val_set_size "
                "special_tokens tokens chat_template* eot_tokens shuffle_merged_datasets skip_prepare_dataset "
                "push_dataset_to_hub revision_of_model base_model_config base_model_ignore_patterns "
                "is_llama_derived_model is_mistral_derived_model is_falcon_derived_model max_packed_sequence_len "
                "sample_packing_* eval_sample_packing resize_token_embeddings_to_32x remove_unused_columns "
                "pretrain_multipack_* streaming* min_sample_len dataloader_* excess_length_strategy "
                "added_tokens_overrides model_config cls_model_config type_of_model is_qwen_derived_model rope_scaling "
                "shrink_embeddings mean_resizing_embeddings role_boundaries preprocess_iterable "
                "pretraining_sample_concatenation num_dataset_shards_to_save "
                "experimental_skip_move_to_device freeze_mm_modules default_system_message total_num_tokens "
                "reinit_weights low_cpu_mem_usage hf_use_auth_token torchdistx_path image_size "
                "model_quantization_config_kwargs gptq_groupsize gptq_disable_exllama accelerator_config "
                "pad_to_multiple_of use_tokenizer_mistral_common processor_kwargs shuffle_before_merging_datasets"},
    IgnoredKeys{"evaluation is no part of an estimate",
                "eval_* evals_per_epoch evaluation_strategy do_causal_lm_eval do_bench_eval bench_dataset bench_split "
                "lm_eval_*"},
    IgnoredKeys{"saving is no part of an estimate unless --save-kind asks for it",
                "save_* saves_per_epoch hub_* resume_from_checkpoint auto_resume_from_checkpoints dynamic_checkpoint "
                "load_best_model_at_end metric_for_best_model greater_is_better fsdp_final_state_dict_type"},
    IgnoredKeys{
        "what is logged, and where",
        "wandb_* use_wandb mlflow_* comet_* swanlab_* use_swanlab trackio_* use_trackio use_tensorboard "
        "logging_steps debug otel_* use_otel_metrics profiler_steps* include_tokens_per_second include_tkps telemetry "
        "use_mlflow hf_mlflow_* use_comet gradio_*"},
    IgnoredKeys{"where the program runs",
                "local_rank ddp_* use_ray ray_* resources_per_worker gpu gpu_count node_count provider memory "
                "memory_preprocess timeout* volumes secrets dockerfile_commands project_name branch xformers*"},
};
constexpr KeyTable kTable{"axolotl", kKeys, kOthers, kIgnored};

int score(const ConfigNode& root) { return find_in(root, "base_model") != nullptr ? kSure : 0; }

void read(const ConfigNode& root, const std::string& file, Draft& draft) {
  draft.assume(fact::kLibrary, "transformers", "axolotl trains with its Trainer");
  read_keys(root, file, "", kTable, draft);
  finish_axolotls_model(draft);
  finish_adapter_kernels(root, draft);
  finish_axolotls_liger(draft);
  finish_axolotl(root, draft);
}

constexpr ConfigTool kTool{.name = "axolotl",
                           .what = "axolotl's configuration",
                           .score = score,
                           .read = read,
                           .program = "axolotl train",
                           .rank = "python -m axolotl.cli.train"};

}  // namespace

const ConfigTool& axolotl_tool() { return kTool; }

}  // namespace vramfit
