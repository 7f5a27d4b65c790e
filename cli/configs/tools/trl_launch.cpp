// What TRL's program hands to `accelerate launch` (trl 1.16, cli/commands/training.py and cli/accelerate_config.py):
// all that its own parser doesn't know, of its command line and of its file.
#include <array>
#include <string>

#include "cli/configs/key_table.h"
#include "cli/configs/tools/launchers.h"

namespace vramfit {
namespace {

constexpr std::array kArguments{IgnoredKeys{
    "",
    "accelerate_config num_processes num_machines machine_rank main_process_ip main_process_port mixed_precision "
    "multi_gpu use_fsdp use_deepspeed cpu use_megatron_lm use_parallelism_config num_cpu_threads_per_process "
    "enable_cpu_affinity dynamo_* gpu_ids same_network log_dir role tee rdzv_* max_restarts monitor_interval module "
    "no_python quiet downcast_bf16 deepspeed_* zero_stage zero3_* offload_* gradient_clipping fsdp_* megatron_lm_* "
    "fp8_* parallelism_config_* tpu tpu_* main_training_function use_xpu"}};
constexpr KeyTable kArgumentTable{"accelerate launch", {}, {}, kArguments};

struct Shipped {
  std::string_view name;
  const char* text;
};
// trl/accelerate_configs/*.yaml, without keys on which nothing depends.
constexpr std::array kShipped{
    Shipped{"fsdp1",
            "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nfsdp_config:\n"
            "  fsdp_activation_checkpointing: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
            "  fsdp_backward_prefetch: BACKWARD_PRE\n  fsdp_forward_prefetch: true\n  fsdp_offload_params: false\n"
            "  fsdp_reshard_after_forward: FULL_SHARD\n  fsdp_use_orig_params: true\n  fsdp_version: 1\n"},
    Shipped{"fsdp2",
            "distributed_type: FSDP\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\nfsdp_config:\n"
            "  fsdp_activation_checkpointing: false\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
            "  fsdp_offload_params: false\n  fsdp_reshard_after_forward: true\n  fsdp_version: 2\n"},
    Shipped{"multi_gpu", "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"},
    Shipped{"single_gpu", "distributed_type: 'NO'\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"},
    Shipped{"zero1",
            "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
            "deepspeed_config:\n  gradient_accumulation_steps: 1\n  zero3_init_flag: false\n  zero_stage: 1\n"},
    Shipped{"zero2",
            "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
            "deepspeed_config:\n  offload_optimizer_device: none\n  offload_param_device: none\n"
            "  zero3_init_flag: false\n  zero_stage: 2\n"},
    Shipped{"zero3",
            "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
            "deepspeed_config:\n  offload_optimizer_device: none\n  offload_param_device: none\n"
            "  zero3_init_flag: true\n  zero3_save_16bit_model: true\n  zero_stage: 3\n"},
};

}  // namespace

bool is_launch_argument(std::string_view key) {
  if (key == "fsdp_config") return false;  // the Trainer's
  ConfigNode single;
  put(single, key, {});
  return known_keys(single, kArgumentTable) > 0;
}

void read_launch_arguments(ConfigNode& map, const std::string& file, Draft& draft) {
  ConfigNode launch, others;
  others.kind = ConfigNode::Kind::map;
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    const std::string& key = map.keys[i];
    const ConfigNode& value = map.items[i];
    if (value.is_null() || !is_launch_argument(key)) {
      put(others, key, value);
    } else if (key == "accelerate_config") {
      const Setting setting{value.file.empty() ? file : value.file, key, &value};
      draft.understand(setting, "accelerate's configuration, for its launcher");
      draft.refer(setting, setting.text());
    } else {
      put(launch, key, value);
    }
  }
  map = std::move(others);
  if (!launch.keys.empty()) accelerate_flags_tool().read(launch, file, draft);
}

const char* trls_accelerate_config(std::string_view name) {
  for (const Shipped& each : kShipped) {
    if (each.name == name) return each.text;
  }
  return nullptr;
}

}  // namespace vramfit
