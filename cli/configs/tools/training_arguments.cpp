// transformers 5.23, training_args.py, class TrainingArguments; names that 4.57 had, too.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "cli/configs/tools/liger.h"
#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/trainer_keys.h"
#include "job/fields/field_text.h"
#include "job/sharding/fsdp_strategies.h"

namespace vramfit {
namespace {

/// true, or in 4.57 "full_shard auto_wrap".
void read_fsdp_switch(const Setting& setting, Draft& draft) {
  if (setting.is_off()) {
    draft.ignore(setting, "off");
    return;
  }
  if (!draft.is(fact::kParallel, "fsdp")) draft.set(fact::kParallel, "fsdp", setting);
  draft.has_trainers_default_wrap = true;
  std::string words = setting.node->is_list() ? "" : setting.text();
  if (setting.node->is_list()) {
    for (const std::string& word : setting.texts()) words += word + " ";
  }
  if (words.find("offload") != std::string::npos && !draft.has("offload")) draft.set("offload", "params", setting);
  std::ranges::replace(words, '_', '-');
  std::string_view strategy;
  for (const std::string_view name : kFsdpStrategies) {  // the name of one begins that of another
    if (words.find(name) != std::string::npos && name.starts_with(strategy)) strategy = name;
  }
  if (strategy.empty()) return;
  draft.set(fact::kFsdpStrategy, std::string(strategy), setting);
  draft.assume(fact::kFsdpVersion, "2", "transformers 5's default");
}

/// transformers 4.57, training_args.py: what fsdp_config calls min_num_params.
void read_fsdp_minimum(const Setting& setting, Draft& draft) {
  if (setting.whole() == 0) {
    draft.ignore(setting, "no limit by size");
  } else {
    draft.set(fact::kMinimum, fmt::to_string(setting.whole(1)), setting, "with FSDP, units by size: --wrap size:N");
  }
}

void read_fsdp_config(const Setting& setting, Draft& draft) {
  if (setting.node->is_map()) {
    read_fsdp(setting, 2, draft);  // transformers 5's default
  } else if (!setting.is_off()) {
    draft.refer(setting, setting.text());
  }
}

}  // namespace

/// What DistributedDataParallel is made with, which other ways to train don't read (trainer.py:
/// _build_accelerator_args).
void read_ddp(const Setting& setting, Draft& draft) {
  if (setting.key == "ddp_find_unused_parameters") {
    draft.set(fact::kFindsUnused, setting.flag() ? "on" : "off", setting, "only for DDP");
    return;
  }
  constexpr std::string_view kUsualBucket = "25";
  const bool is_usual = setting.key == "ddp_bucket_cap_mb"       ? setting.is(kUsualBucket)
                        : setting.key == "ddp_broadcast_buffers" ? setting.flag()
                                                                 : !setting.flag();
  if (is_usual) {
    draft.understand(setting, "what DDP has by default");
  } else {
    draft.set(fact::kOtherDdp, "on", setting, "only for DDP");
  }
}

namespace {

constexpr std::array kAcceleratorOthers{
    UnmodelledKeys{"micro-batches are accumulated differently", "gradient_accumulation_kwargs"}};
constexpr std::array kAcceleratorIgnored{
    IgnoredKeys{"how data are read; every row is taken as full",
                "split_batches dispatch_batches even_batches use_seedable_sampler non_blocking data_seed "
                "use_configured_state"}};
constexpr KeyTable kAcceleratorTable{"accelerator_config", {}, kAcceleratorOthers, kAcceleratorIgnored};

void read_accelerator(const Setting& setting, Draft& draft) {
  if (setting.node->is_map()) return read_keys(setting, kAcceleratorTable, draft);
  draft.not_modelled(setting, "a file, or a text, of settings of accelerate's that isn't read");
}

void read_tf32(const Setting& setting, Draft& draft) { draft.ignore(setting, "no memory depends on it"); }

constexpr std::array kKeys{
    KeyRow{"per_device_train_batch_size", read_count<kMicroBatch>},
    KeyRow{"per_gpu_train_batch_size", read_count<kMicroBatch>},
    KeyRow{"gradient_accumulation_steps", read_count<kGradAccum>},
    KeyRow{"gradient_checkpointing", read_checkpointing},
    KeyRow{"activation_checkpointing", read_checkpointing},
    KeyRow{"gradient_checkpointing_kwargs", read_checkpointing_options},
    KeyRow{"activation_checkpointing_kwargs", read_checkpointing_options},
    KeyRow{"bf16", read_bf16},
    KeyRow{"fp16", read_fp16},
    KeyRow{"optim", read_hf_optimizer},
    KeyRow{"optim_args", read_optimizer_arguments},
    KeyRow{"weight_decay", read_weight_decay},
    KeyRow{"fsdp", read_fsdp_switch},
    KeyRow{"fsdp_config", read_fsdp_config},
    KeyRow{"fsdp_min_num_params", read_fsdp_minimum},
    KeyRow{"deepspeed", read_deepspeed},
    KeyRow{"parallelism_config", read_parallelism},
    KeyRow{"accelerator_config", read_accelerator},
    KeyRow{"tf32", read_tf32},
    KeyRow{"full_determinism", read_determinism},
    KeyRow{"max_grad_norm", read_clipped_norm, true},
    KeyRow{"ddp_find_unused_parameters", read_ddp},
    KeyRow{"ddp_bucket_cap_mb", read_ddp},
    KeyRow{"ddp_broadcast_buffers", read_ddp},
    KeyRow{"ddp_static_graph", read_ddp},
    KeyRow{"use_liger_kernel", read_liger},
    KeyRow{"liger_kernel_config", read_liger_config},
};
constexpr std::array kOthers{
    UnmodelledKeys{"torch.compile", "torch_compile torchdynamo torch_compile_backend torch_compile_mode"},
    UnmodelledKeys{"noise on the embeddings, in fp32", "neftune_noise_alpha"},
    UnmodelledKeys{"the allocator's cache is emptied now and then", "torch_empty_cache_steps"},
    UnmodelledKeys{"the batch is made smaller until it fits", "auto_find_batch_size"},
    UnmodelledKeys{"low-rank gradients", "optim_target_modules"},
    UnmodelledKeys{"it trains on CPUs", "use_cpu no_cuda"},
    UnmodelledKeys{"a cache of keys and values", "use_cache"},
    UnmodelledKeys{"labels are smoothed, which keeps more of the logits", "label_smoothing_factor"},
    UnmodelledKeys{"apex instead of autocast", "fp16_backend", "auto"},
    UnmodelledKeys{"apex instead of autocast", "half_precision_backend", "auto"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"no memory depends on it",
                "output_dir overwrite_output_dir num_train_epochs max_steps learning_rate lr_scheduler_type "
                "lr_scheduler_kwargs warmup_steps warmup_ratio adam_beta1 adam_beta2 "
                "adam_epsilon average_tokens_across_devices seed data_seed fp16_opt_level"},
    IgnoredKeys{"what is logged, and where",
                "logging_* log_level log_level_replica log_on_each_node disable_tqdm report_to run_name project "
                "trackio_space_id trackio_* include_num_input_tokens_seen include_tokens_per_second "
                "skip_memory_metrics debug"},
    IgnoredKeys{"evaluation is no part of an estimate",
                "eval_* evaluation_strategy per_device_eval_batch_size per_gpu_eval_batch_size prediction_loss_only "
                "include_for_metrics include_inputs_for_metrics batch_eval_metrics bf16_full_eval fp16_full_eval "
                "predict_with_generate generation_*"},
    IgnoredKeys{"saving is no part of an estimate unless --save-kind asks for it",
                "save_* enable_jit_checkpoint push_to_hub hub_* load_best_model_at_end metric_for_best_model "
                "greater_is_better resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint"},
    IgnoredKeys{"how data are read; every row is taken as full",
                "dataloader_* remove_unused_columns label_names train_sampling_strategy length_column_name "
                "group_by_length past_index sortish_sampler"},
    IgnoredKeys{"how processes find each other, and how long they wait", "ddp_backend ddp_timeout* local_rank"},
    IgnoredKeys{"what the script does", "do_train do_eval do_predict"},
    IgnoredKeys{"which layers, where a policy of FSDP's wraps layers", "fsdp_transformer_layer_cls_to_wrap"},
};
constexpr KeyTable kTable{"TrainingArguments", kKeys, kOthers, kIgnored};

void read_momentum(const Setting& setting, Draft& draft) {
  if (setting.real() != 0) {
    draft.set(fact::kMomentum, "on", setting, "what SGD has a buffer for");
  } else {
    draft.ignore(setting, "no momentum");
  }
}

constexpr std::array kOptimizerKeys{
    KeyRow{"momentum", read_momentum},
    KeyRow{"weight_decay", read_weight_decay},
};
constexpr std::array kOptimizerOthers{
    UnmodelledKeys{"other blocks of averages", "block_size", "256"},
    UnmodelledKeys{"stochastic rounding", "bf16_stochastic_round"},
};
constexpr std::array kOptimizerIgnored{
    IgnoredKeys{"no memory depends on it",
                "nesterov dampening lr eps betas beta1 beta2 beta3 alpha t_alpha t_beta3 scale_parameter relative_step "
                "clip_threshold decay_rate warmup_init"}};
constexpr KeyTable kOptimizerTable{"optim_args", kOptimizerKeys, kOptimizerOthers, kOptimizerIgnored};

/// The pairs of "momentum=0.9, nesterov=True", each with the line of the whole.
ConfigNode pairs_in(const Setting& setting) {
  ConfigNode map;
  map.kind = ConfigNode::Kind::map;
  std::string said = setting.text();
  std::erase(said, ' ');
  for (const std::string& pair : split_list(said)) {
    const std::size_t equals = pair.find('=');
    if (equals == std::string::npos || equals == 0) continue;  // the Trainer's own parser fails there
    ConfigNode value = text_node(pair.substr(equals + 1), setting.node->line);
    value.number = setting.node->number;
    put(map, pair.substr(0, equals), std::move(value));
  }
  return map;
}

}  // namespace

void read_optimizer_arguments(const Setting& setting, Draft& draft) {
  if (setting.node->is_map()) return read_keys(setting, kOptimizerTable, draft);
  const ConfigNode map = pairs_in(setting);
  if (map.keys.empty()) return draft.ignore(setting, "no memory depends on it");
  read_keys({setting.file, setting.key, &map}, kOptimizerTable, draft);
}

void read_weight_decay(const Setting& setting, Draft& draft) {
  if (!setting.is_off() && setting.real() != 0) draft.derive(fact::kWeightDecay, "on");
  draft.ignore(setting, "no memory depends on it, except with SGD");
}

const KeyTable& training_arguments() { return kTable; }

}  // namespace vramfit
