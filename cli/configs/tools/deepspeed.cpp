// DeepSpeed's configuration (0.19, runtime/config.py and runtime/zero/config.py). "auto" is resolved by transformers'
// Trainer, from its own arguments.
#include <array>
#include <cstdint>

#include <fmt/format.h>

#include "cli/configs/tools.h"
#include "cli/configs/tools/deepspeed_blocks.h"
#include "cli/configs/tools/shared.h"
#include "job/fields/zero_text.h"

namespace vramfit {
namespace {

bool is_auto(const Setting& setting, Draft& draft) {
  if (!setting.is("auto")) return false;
  draft.understand(setting, "as the Trainer's arguments say");
  return true;
}

template <const auto& Field>
void read_batch(const Setting& setting, Draft& draft) {
  if (!is_auto(setting, draft)) read_count<Field>(setting, draft);
}

template <bool Bf16>
void read_enabled(const Setting& value, Draft& draft) {
  if (is_auto(value, draft)) return;
  if (!value.flag()) {
    draft.understand(value, "off");
  } else if (!draft.is(fact::kMixedHere, Bf16 ? "bf16" : "fp16")) {
    draft.set(fact::kMixedHere, Bf16 ? "bf16" : "fp16", value);
  } else {
    draft.understand(value, "already said");
  }
}

template <bool Bf16>
constexpr std::array kHalfKeys{
    KeyRow{"enabled", read_enabled<Bf16>},
    KeyRow{"check_grad_overflow", read_what_is_on},
};
constexpr std::array kHalfOthers{
    UnmodelledKeys{"masters, gradients or states in another dtype than fp32",
                   "bf16_master_weights_and_grads bf16_optimizer_states fp16_master_weights_and_grads "
                   "fp16_optimizer_states"},
    UnmodelledKeys{"gradients are added up while backward runs", "immediate_grad_update"},
};
constexpr std::array kHalfIgnored{
    IgnoredKeys{"no memory depends on it",
                "loss_scale loss_scale_window initial_scale_power hysteresis consecutive_hysteresis min_loss_scale "
                "auto_cast"},
};
template <bool Bf16>
constexpr KeyTable kHalfTable{"DeepSpeed's half precision", kHalfKeys<Bf16>, kHalfOthers, kHalfIgnored};

/// {"enabled": true}.
template <bool Bf16>
void read_half(const Setting& setting, Draft& draft) {
  if (find_in(*setting.node, "enabled") == nullptr) {
    draft.ignore(setting, "not enabled");
  } else {
    read_keys(setting, kHalfTable<Bf16>, draft);
  }
}

void read_stage(const Setting& setting, Draft& draft) {
  draft.set(fact::kZeroStage, fmt::to_string(setting.whole(0, 3)), setting);
}

/// A number of elements, as which DeepSpeed takes any; those beyond kMostZero3Size are no limit, and are that here.
std::string size_of(const Setting& setting) {
  if (setting.is("auto")) return "auto";
  const double value = setting.real();
  return fmt::to_string(value > static_cast<double>(kMostZero3Size) ? kMostZero3Size : setting.whole(0));
}

/// One of --zero3-sizes, a fact of its own: what two files say of it must be the same.
template <const auto& Name>
void read_size(const Setting& setting, Draft& draft) {
  if (setting.is("auto") && !may_be_auto(Name)) {
    return draft.not_modelled(setting, "the Trainer doesn't fill it in: leave it out for DeepSpeed's default");
  }
  const std::string value = size_of(setting);
  Job job;
  set_zero3_size(job.zero3_sizes, Name, value);
  const bool is_usual = job.zero3_sizes == Zero3Sizes{};
  draft.set(zero3_fact(Name), value, setting,
            is_usual ? "what DeepSpeed has by default" : fmt::format("--zero3-sizes {}={}", Name, value));
}
inline constexpr std::string_view kSubGroup = "sub_group_size", kPrefetch = "prefetch_bucket_size",
                                  kPersistent = "param_persistence_threshold", kLive = "max_live_parameters",
                                  kReuse = "max_reuse_distance";

constexpr std::int64_t kMostBucketNumbers = std::int64_t{1} << 39;

// In numbers of 2 bytes.
void read_reduce_bucket(const Setting& setting, Draft& draft) {
  if (setting.is("auto")) {
    draft.set("bucket_bytes", "auto", setting);
  } else {
    draft.set("bucket_bytes", fmt::to_string(2 * setting.whole(1, kMostBucketNumbers)), setting);
  }
}

void read_overlap(const Setting& setting, Draft& draft) {
  draft.set("overlap_comm", setting.flag() ? "on" : "off", setting);
}

constexpr std::string_view kNoMemory = "no memory depends on it",
                           kZeroWithoutMemory =
                               "cpu_offload_use_pin_memory legacy_stage1 pipeline_loading_checkpoint "
                               "override_module_apply log_trace_cache_warnings enable_sanity_checks "
                               "save_muon_momentum_buffer_in_memory";

constexpr std::array kZeroKeys{
    KeyRow{"stage", read_stage},
    KeyRow{"offload_optimizer", read_deepspeed_offload<false>},
    KeyRow{"offload_param", read_deepspeed_offload<true>},
    KeyRow{"reduce_bucket_size", read_reduce_bucket},
    KeyRow{"sub_group_size", read_size<kSubGroup>},
    KeyRow{"stage3_prefetch_bucket_size", read_size<kPrefetch>},
    KeyRow{"stage3_param_persistence_threshold", read_size<kPersistent>},
    KeyRow{"stage3_max_live_parameters", read_size<kLive>},
    KeyRow{"prefetch_bucket_size", read_size<kPrefetch>},
    KeyRow{"param_persistence_threshold", read_size<kPersistent>},
    KeyRow{"max_live_parameters", read_size<kLive>},
    KeyRow{"max_reuse_distance", read_size<kReuse>},
    KeyRow{"stage3_max_reuse_distance", read_size<kReuse>},
    KeyRow{"overlap_comm", read_overlap},
    KeyRow{"contiguous_gradients", read_what_is_on},
    KeyRow{"reduce_scatter", read_what_is_on},
    KeyRow{"memory_efficient_linear", read_what_is_on},
};
constexpr std::array kZeroOthers{
    UnmodelledKeys{"another way to send or to split than the usual one",
                   "round_robin_gradients zero_hpz_partition_size zero_quantized_weights zero_quantized_gradients "
                   "zero_quantized_nontrainable_weights mics_shard_size mics_hierarchical_params_gather zenflow "
                   "stage3_module_granularity_threshold module_granularity_threshold leaf_module",
                   "1"},
    UnmodelledKeys{"another way to gather than the usual one",
                   "stage3_model_persistence_threshold model_persistence_threshold "
                   "stage3_use_all_reduce_for_fetch_params use_all_reduce_for_fetch_params stage3_allgather_sequential "
                   "allgather_sequential",
                   "false"},
    UnmodelledKeys{"how DeepSpeed was told to offload before 0.3.16",
                   "cpu_offload cpu_offload_params cpu_offload_param"},
    UnmodelledKeys{"weights of other partitions", "load_from_fp32_weights elastic_checkpoint", "true"},
};
constexpr std::array kZeroIgnored{
    IgnoredKeys{"affects only saving",
                "gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save "
                "stage3_gather_fp16_weights_on_model_save"},
    IgnoredKeys{"only for ZeRO-1 and ZeRO-2", "allgather_bucket_size"},
    IgnoredKeys{kNoMemory, kZeroWithoutMemory},
    IgnoredKeys{"on, or left to DeepSpeed, in the recipe too",
                "allgather_partitions ignore_unused_parameters use_multi_rank_bucket_allreduce"},
};
constexpr KeyTable kZeroTable{"DeepSpeed's zero_optimization", kZeroKeys, kZeroOthers, kZeroIgnored};

constexpr std::array kLowZeroKeys{
    KeyRow{"stage", read_stage},
    KeyRow{"offload_optimizer", read_deepspeed_offload<false>},
    KeyRow{"offload_param", read_deepspeed_offload<true>},
    KeyRow{"reduce_bucket_size", read_reduce_bucket},
    KeyRow{"overlap_comm", read_overlap},
    KeyRow{"contiguous_gradients", read_what_is_on},
    KeyRow{"reduce_scatter", read_what_is_on},
    KeyRow{"use_multi_rank_bucket_allreduce", read_what_is_on},
    KeyRow{"compute_grad_norm", read_what_is_on},
};
constexpr std::array kLowZeroOthers{
    UnmodelledKeys{"another way to send or to split than the usual one",
                   "round_robin_gradients zenflow parameter_alignment"},
    UnmodelledKeys{"how DeepSpeed was told to offload before 0.3.16", "cpu_offload"},
    UnmodelledKeys{"weights of other partitions", "load_from_fp32_weights elastic_checkpoint", "true"},
};
constexpr std::array kLowZeroIgnored{
    IgnoredKeys{"only for ZeRO-3",
                "stage3_* max_live_parameters max_reuse_distance sub_group_size memory_efficient_linear zero_hpz_* "
                "zero_quantized_* mics_* gather_16bit_weights_on_model_save leaf_module prefetch_bucket_size "
                "param_persistence_threshold model_persistence_threshold module_granularity_threshold "
                "use_all_reduce_for_fetch_params allgather_sequential"},
    IgnoredKeys{"updated partitions are gathered in place, at once", "allgather_partitions allgather_bucket_size"},
    IgnoredKeys{"all parameters are used", "ignore_unused_parameters"},
    IgnoredKeys{kNoMemory, kZeroWithoutMemory},
};
constexpr KeyTable kLowZeroTable{"DeepSpeed's zero_optimization", kLowZeroKeys, kLowZeroOthers, kLowZeroIgnored};

void check_offloaded_alone(const Setting& setting, Draft& draft) {
  const auto is_on_host = [&](std::string_view key) {
    const ConfigNode* block = find_in(*setting.node, key);
    const ConfigNode* device = block == nullptr ? nullptr : find_in(*block, "device");
    return device != nullptr && Setting{setting.file, "", device}.is("cpu");
  };
  if (!is_on_host("offload_param") || is_on_host("offload_optimizer")) return;
  refuse_offload_without_states({setting.file, setting.key + ".offload_param", find_in(*setting.node, "offload_param")},
                                "offload_optimizer", draft);
}

template <bool IsLow>
void read_zero(const Setting& setting, Draft& draft) {
  read_keys(setting, IsLow ? kLowZeroTable : kZeroTable, draft);
  if (!IsLow) check_offloaded_alone(setting, draft);
}

/// DeepSpeed clips unless it is 0, its default; what the Trainer fills in is its own max_grad_norm.
void read_clipping(const Setting& setting, Draft& draft) {
  if (!is_auto(setting, draft)) read_clipped_norm(setting, draft);
}

void read_if_enabled(const Setting& setting, Draft& draft) {
  const ConfigNode* enabled = find_in(*setting.node, "enabled");
  if (enabled == nullptr || Setting{setting.file, setting.key, enabled}.is_off()) {
    draft.ignore(setting, "not enabled");
  } else {
    draft.not_modelled(setting, "changes what is computed, or where it lies");
  }
}

constexpr std::array kTypesOthers{UnmodelledKeys{"gradients are kept in another dtype", "grad_accum_dtype"}};
constexpr KeyTable kTypesTable{"DeepSpeed's data_types", {}, kTypesOthers, {}};
void read_types(const Setting& setting, Draft& draft) { read_keys(setting, kTypesTable, draft); }

void read_activation_checkpointing(const Setting& setting, Draft& draft) {
  for (const std::string_view key : {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization"}) {
    const ConfigNode* value = find_in(*setting.node, key);
    if (value != nullptr && !Setting{setting.file, setting.key, value}.is_off()) {
      draft.not_modelled(setting, "DeepSpeed's own checkpointing of activations");
      return;
    }
  }
  draft.ignore(setting, "all of it is off");
}

template <bool IsLow>
constexpr std::array kKeys{
    KeyRow{"train_batch_size", read_batch<kGlobalBatch>},
    KeyRow{"train_micro_batch_size_per_gpu", read_batch<kMicroBatch>},
    KeyRow{"gradient_accumulation_steps", read_batch<kGradAccum>},
    KeyRow{"bf16", read_half<true>},
    KeyRow{"bfloat16", read_half<true>},
    KeyRow{"fp16", read_half<false>},
    KeyRow{"zero_optimization", read_zero<IsLow>},
    KeyRow{"optimizer", read_deepspeed_optimizer},
    KeyRow{"gradient_clipping", read_clipping},
    KeyRow{"activation_checkpointing", read_activation_checkpointing},
    KeyRow{"data_types", read_types},
    KeyRow{"torch_autocast", read_if_enabled},
    KeyRow{"amp", read_if_enabled},
    KeyRow{"data_efficiency", read_if_enabled},
    KeyRow{"eigenvalue", read_if_enabled},
    KeyRow{"curriculum_learning", read_if_enabled},
    KeyRow{"quantize_training", read_if_enabled},
    KeyRow{"compile", read_if_enabled},
    KeyRow{"progressive_layer_drop", read_if_enabled},
};
constexpr std::array kOthers{
    UnmodelledKeys{"gradients are sent in another dtype",
                   "communication_data_type seq_parallel_communication_data_type"},
    UnmodelledKeys{"only data parallelism is modelled", "tensor_parallel pipeline sequence_parallel_size", "1"},
    UnmodelledKeys{"another way to train than the usual one",
                   "sparse_attention compression_training sparse_gradients hybrid_engine graph_harvesting "
                   "expert_parallel weight_quantization"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"no memory depends on it",
                "scheduler gradient_predivide_factor prescale_gradients seed "
                "gradient_allreduce_op disable_python_gc vocabulary_size use_data_before_expert_parallel_ log_level"},
    IgnoredKeys{"what is printed and measured",
                "steps_per_print wall_clock_breakdown dump_state flops_profiler tensorboard wandb csv_monitor comet "
                "memory_breakdown comms_logger comms_config monitor_config autotuning elasticity"},
    IgnoredKeys{"affects only loading and saving", "checkpoint aio nebula dataloader_drop_last"},
    IgnoredKeys{"whether DeepSpeed refuses optimizers that aren't its own",
                "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"},
    IgnoredKeys{"nothing reads it", "disable_allgather"},
};
template <bool IsLow>
constexpr KeyTable kTable{"DeepSpeed", kKeys<IsLow>, kOthers, kIgnored};

/// Whether zero_optimization says stage 1 or 2.
bool is_low_stage(const Setting& setting) {
  const ConfigNode* zero = find_in(*setting.node, "zero_optimization");
  const ConfigNode* stage = zero == nullptr ? nullptr : find_in(*zero, "stage");
  const Setting value{setting.file, "zero_optimization.stage", stage};
  return stage != nullptr && (value.is("1") || value.is("2"));
}

int score(const ConfigNode& root) {
  for (const std::string_view key : {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}) {
    if (find_in(root, key) != nullptr) return kSure;
  }
  return 0;
}

void read(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_deepspeed_keys({file, "", &root}, draft);
}

constexpr ConfigTool kTool{"deepspeed", "DeepSpeed's configuration", score, read};

}  // namespace

void refuse_offload_without_states(const Setting& parameters, std::string_view states, Draft& draft) {
  draft.not_modelled(
      parameters, fmt::format("parameters in host memory without the optimizer's states (with {} they are)", states));
}

void read_deepspeed_keys(const Setting& setting, Draft& draft) {
  const ConfigNode* zero = find_in(*setting.node, "zero_optimization");
  if (zero != nullptr) {
    use_deepspeed({setting.file, "zero_optimization", zero}, draft);
  } else {
    draft.assume(fact::kParallel, "deepspeed", "by its configuration");
  }
  read_keys(setting, is_low_stage(setting) ? kTable<true> : kTable<false>, draft);
  draft.assume(fact::kZeroStage, "0", "DeepSpeed's default");
}

const ConfigTool& deepspeed_tool() { return kTool; }

}  // namespace vramfit
