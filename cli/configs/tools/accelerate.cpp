// accelerate's configuration file, as `accelerate config` writes it (accelerate 1.15, commands/config/config_args.py).
#include <array>

#include <fmt/format.h>

#include "cli/configs/tools.h"
#include "cli/configs/tools/shared.h"

namespace vramfit {
namespace {

void read_distributed_type(const Setting& setting, Draft& draft) {
  struct Type {
    std::string_view theirs, ours;
  };
  constexpr std::array kTypes{Type{"no", "none"}, Type{"false", "none"}, Type{"multi_gpu", "ddp"}, Type{"fsdp", "fsdp"},
                              Type{"deepspeed", "deepspeed"}};
  for (const Type& type : kTypes) {
    if (!setting.is(type.theirs)) continue;
    const bool is_deepspeed = draft.is(fact::kParallel, "deepspeed");
    if (is_deepspeed && (type.ours == "none" || type.ours == "ddp")) {
      return draft.understand(setting, "the Trainer makes it DeepSpeed, which another file asks for");
    }
    draft.set(fact::kParallel, std::string(type.ours), setting);
    return;
  }
  draft.not_modelled(setting, "a way to train without rules here");
}

/// `no` without quotes is false in YAML.
void read_mixed_precision(const Setting& setting, Draft& draft) {
  const std::string value = setting.is_off() ? "no" : setting.text();
  if (value != "no" && value != "bf16" && value != "fp16" && value != "fp8") {
    setting.fail(fmt::format("{} is none of no, fp16, bf16, fp8", shown(*setting.node)));
  }
  draft.set(fact::kMixed, value, setting);
}

/// -1, accelerate's default, is as many as there are.
void read_processes(const Setting& setting, Draft& draft) {
  if (setting.whole(-1, 1 << 20) < 1) {
    draft.understand(setting, "as many as there are");
  } else {
    draft.set(fact::kProcesses, fmt::to_string(setting.whole()), setting);
  }
}
void read_machines(const Setting& setting, Draft& draft) {
  draft.set(fact::kNodes, fmt::to_string(setting.whole(1, 1 << 20)), setting);
}

/// gpu_ids: those that are visible; "all" is the default.
void read_cards(const Setting& setting, Draft& draft) {
  if (setting.is("all")) return draft.ignore(setting, "all that there are");
  const std::size_t cards = setting.texts().size();
  draft.set(fact::kVisible, fmt::to_string(cards), setting,
            fmt::format("{} visible; nothing else says how many", cards));
}

void read_fsdp_config(const Setting& setting, Draft& draft) {
  read_fsdp(setting, 1, draft);
  for (const std::string_view key : {"fsdp_version", "version"}) {
    const ConfigNode* const version = find_in(*setting.node, key);
    if (version != nullptr && version->is_scalar()) draft.derive(fact::kLaunchedFsdp, version->text);
  }
}

/// FullyShardedDataParallelPlugin.__post_init__: NO_WRAP where nothing names a policy. FSDP is what this file asks for,
/// so that it doesn't matter which other files were read before.
void note_missing_policy(const ConfigNode& root, Draft& draft) {
  const ConfigNode* config = find_in(root, "fsdp_config");
  const auto names_policy = [&](std::string_view key) {
    const ConfigNode* policy = config == nullptr ? nullptr : find_in(*config, key);
    return policy != nullptr && policy->kind != ConfigNode::Kind::null;
  };
  const bool is_named = names_policy("fsdp_auto_wrap_policy") || names_policy("auto_wrap_policy");
  const ConfigNode* type = find_in(root, "distributed_type");
  const bool is_fsdp = type != nullptr && Setting{"", "distributed_type", type}.is("fsdp");
  if (is_fsdp && !is_named) draft.has_accelerates_default_wrap = true;
}

void read_zero_stage(const Setting& setting, Draft& draft) {
  draft.set(fact::kZeroStage, fmt::to_string(setting.whole(0, 3)), setting);
}
void read_offloaded(const Setting& setting, Draft& draft) {
  const bool is_parameters = setting.key.find("param") != std::string::npos;
  if (setting.is_off()) {
    draft.understand(setting, "nothing in host memory");
  } else if (!setting.is("cpu")) {
    draft.not_modelled(setting, "offload to another place than host memory");
  } else if (is_parameters || !draft.is("offload", "params")) {
    draft.forget("offload");  // parameters include the states
    draft.set("offload", is_parameters ? "params" : "optimizer", setting);
  } else {
    draft.understand(setting, "with the parameters");
  }
}
void read_config_file(const Setting& setting, Draft& draft) { draft.refer(setting, setting.text()); }

/// accelerate 1.15, utils/dataclasses.py: auto, its default, is what the Trainer's arguments say, and 0 is left out, so
/// that DeepSpeed doesn't clip.
void read_clipping(const Setting& setting, Draft& draft) {
  if (setting.is("auto")) return draft.understand(setting, "as the Trainer's arguments say");
  read_clipped_norm(setting, draft);
}

constexpr std::array kDeepspeedKeys{
    KeyRow{"zero_stage", read_zero_stage},
    KeyRow{"offload_optimizer_device", read_offloaded},
    KeyRow{"offload_param_device", read_offloaded},
    KeyRow{"gradient_accumulation_steps", read_count<kGradAccum>},
    KeyRow{"deepspeed_config_file", read_config_file},
    KeyRow{"gradient_clipping", read_clipping},
};
constexpr std::array kDeepspeedOthers{
    UnmodelledKeys{"experts that ZeRO-3 gathers whole", "deepspeed_moe_layer_cls_names"},
};
constexpr std::array kDeepspeedIgnored{
    IgnoredKeys{"affects only loading and saving", "zero3_init_flag zero3_save_16bit_model"},
    IgnoredKeys{"where what is offloaded to disk lies", "offload_optimizer_nvme_path offload_param_nvme_path"},
    IgnoredKeys{
        "how processes are started",
        "deepspeed_multinode_launcher deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter"},
};
constexpr KeyTable kDeepspeedTable{"accelerate's deepspeed_config", kDeepspeedKeys, kDeepspeedOthers,
                                   kDeepspeedIgnored};
void read_deepspeed_config(const Setting& setting, Draft& draft) {
  read_keys(setting, kDeepspeedTable, draft);
  const auto is_on_host = [&](std::string_view key) {
    const ConfigNode* device = find_in(*setting.node, key);
    return device != nullptr && Setting{setting.file, "", device}.is("cpu");
  };
  if (!is_on_host("offload_param_device") || is_on_host("offload_optimizer_device")) return;
  refuse_offload_without_states(
      {setting.file, setting.key + ".offload_param_device", find_in(*setting.node, "offload_param_device")},
      "offload_optimizer_device", draft);
}

void read_dynamo(const Setting& setting, Draft& draft) {
  const ConfigNode* backend = find_in(*setting.node, "dynamo_backend");
  if (backend == nullptr || Setting{setting.file, setting.key, backend}.is_off()) {
    draft.ignore(setting, "off");
  } else {
    draft.not_modelled(setting, "torch.compile");
  }
}

constexpr std::array kKeys{
    KeyRow{"distributed_type", read_distributed_type},
    KeyRow{"mixed_precision", read_mixed_precision},
    KeyRow{"num_processes", read_processes},
    KeyRow{"num_machines", read_machines},
    KeyRow{"gpu_ids", read_cards},
    KeyRow{"fsdp_config", read_fsdp_config},
    KeyRow{"deepspeed_config", read_deepspeed_config},
    KeyRow{"parallelism_config", read_parallelism},
    KeyRow{"gradient_accumulation_steps", read_count<kGradAccum>},
    KeyRow{"dynamo_config", read_dynamo},
};
constexpr std::array kOthers{
    UnmodelledKeys{"it trains on CPUs", "use_cpu"},
    UnmodelledKeys{"only data parallelism is modelled", "megatron_lm_config"},
    UnmodelledKeys{"FP8 as accelerate does it", "fp8_config"},
    UnmodelledKeys{"it trains on TPUs", "tpu_use_cluster tpu_use_sudo downcast_bf16 tpu_name tpu_zone"},
    UnmodelledKeys{"weights on the CPU by ktransformers", "kt_config"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"how processes find each other",
                "machine_rank main_process_ip main_process_port rdzv_backend rdzv_conf same_network "
                "mpirun_config max_restarts monitor_interval module m no_python role tee log_dir quiet"},
    IgnoredKeys{"where and how the program is started",
                "compute_environment debug main_training_function enable_cpu_affinity command_file commands tpu_env "
                "tpu_vm env_vars num_cpu_threads_per_process use_xpu ipex_config"},
    IgnoredKeys{"belongs to Amazon SageMaker",
                "ec2_instance_type iam_role_name image_uri profile region base_job_name pytorch_version "
                "transformers_version py_version sagemaker_inputs_file sagemaker_metrics_file additional_args"},
};
constexpr KeyTable kTable{"accelerate", kKeys, kOthers, kIgnored};

int score(const ConfigNode& root) {
  if (find_in(root, "distributed_type") != nullptr) return kSure;
  return find_in(root, "compute_environment") != nullptr ? kSure : 0;
}

void read(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_keys(root, file, "", kTable, draft);
  note_missing_policy(root, draft);
}

constexpr ConfigTool kTool{"accelerate", "accelerate's configuration", score, read};

}  // namespace

const ConfigTool& accelerate_tool() { return kTool; }

}  // namespace vramfit
