// accelerate 1.15, commands/launch.py; torch 2.11, distributed/run.py; DeepSpeed 0.19, launcher/runner.py.
#include "cli/configs/tools/launchers.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include <fmt/format.h>

#include "cli/configs/key_table.h"

namespace vramfit {
namespace {

/// "gpu", "auto" and a range of nodes leave it open.
void read_number(std::string_view name, const Setting& setting, Draft& draft) {
  if (setting.node->kind == ConfigNode::Kind::integer) {
    draft.set(name, fmt::to_string(setting.whole(1, 1 << 20)), setting);
  } else {
    draft.ignore(setting, "no number; say it with --gpus");
  }
}
void read_per_node(const Setting& setting, Draft& draft) { read_number(fact::kPerNode, setting, draft); }
void read_nodes(const Setting& setting, Draft& draft) { read_number(fact::kNodes, setting, draft); }

constexpr std::array kTorchrunKeys{
    KeyRow{"nproc_per_node", read_per_node},
    KeyRow{"nnodes", read_nodes},
};
constexpr std::array kTorchrunIgnored{
    IgnoredKeys{"how processes find each other",
                "standalone rdzv_* master_addr master_port node_rank max_restarts monitor_interval start_method role "
                "log_dir redirects tee local_ranks_filter local_addr logs_specs module no_python m run_path use_env "
                "numa_binding signals_to_handle"}};
constexpr KeyTable kTorchrun{"torchrun", kTorchrunKeys, {}, kTorchrunIgnored};

/// "localhost:0,1@worker:0,1", or nodes whose cards are all used.
void read_include(const Setting& setting, Draft& draft) {
  const std::string said = setting.text();
  const auto nodes = 1 + std::ranges::count(said, '@');
  const std::size_t colon = said.find(':');
  if (colon == std::string::npos || said.find('$') != std::string::npos) {
    draft.ignore(setting, "no list of cards; say how many with --gpus");
    return;
  }
  const auto cards = 1 + std::ranges::count(said.substr(0, said.find('@')), ',');
  draft.set(fact::kPerNode, fmt::to_string(cards), setting, fmt::format("{} GPUs on each of {} nodes", cards, nodes));
  if (nodes > 1) draft.set(fact::kNodes, fmt::to_string(nodes), setting);
}

constexpr std::array kDeepspeedKeys{
    KeyRow{"num_gpus", read_per_node},
    KeyRow{"num_nodes", read_nodes},
    KeyRow{"include", read_include},
};
constexpr std::array kDeepspeedIgnored{
    IgnoredKeys{"how processes find each other",
                "hostfile exclude master_addr master_port launcher launcher_args node_rank no_python module "
                "no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training enable_each_rank_log "
                "ssh_port bind_cores_to_rank"}};
constexpr KeyTable kDeepspeed{"the deepspeed program", kDeepspeedKeys, {}, kDeepspeedIgnored};

int never(const ConfigNode& /*root*/) { return 0; }

void read_torchrun(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_keys(root, file, "", kTorchrun, draft);
  if (find_in(root, "nproc_per_node") == nullptr) draft.assume(fact::kPerNode, "1", "torchrun's default");
}
void read_deepspeed_flags(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_keys(root, file, "", kDeepspeed, draft);
}

bool is_any(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

/// The flags of `accelerate launch` under the keys of accelerate's configuration.
void read_accelerate_flags(const ConfigNode& root, const std::string& file, Draft& draft) {
  constexpr std::string_view kParallelism = "parallelism_config_";
  ConfigNode config, fsdp, deepspeed, parallelism;
  config.kind = fsdp.kind = deepspeed.kind = ConfigNode::Kind::map;
  for (std::size_t i = 0; i < root.keys.size(); ++i) {
    const std::string& key = root.keys[i];
    const ConfigNode& value = root.items[i];
    if (key == "use_fsdp" || key == "use_deepspeed" || key == "multi_gpu") {
      const std::string_view type = key == "use_fsdp" ? "FSDP" : key == "multi_gpu" ? "MULTI_GPU" : "DEEPSPEED";
      put(config, "distributed_type", text_node(type, value.line));
    } else if (key.starts_with("fsdp_")) {
      put(fsdp, key, value);
    } else if (is_any(key, {"zero_stage", "offload_optimizer_device", "offload_param_device", "deepspeed_config_file",
                            "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag",
                            "zero3_save_16bit_model", "deepspeed_hostfile", "deepspeed_multinode_launcher"})) {
      put(deepspeed, key, value);
    } else if (key.starts_with(kParallelism)) {
      put(parallelism, key, value);
    } else if (key == "cpu") {
      put(config, "use_cpu", value);
    } else if (key == "use_megatron_lm") {
      put(config, "megatron_lm_config", value);
    } else if (key == "dynamo_backend") {
      ConfigNode dynamo;
      put(dynamo, key, value);
      put(config, "dynamo_config", std::move(dynamo));
    } else {
      put(config, key, value);
    }
  }
  if (!parallelism.keys.empty()) put(config, "parallelism_config", std::move(parallelism));
  if (!fsdp.keys.empty()) put(config, "fsdp_config", std::move(fsdp));
  if (!deepspeed.keys.empty()) put(config, "deepspeed_config", std::move(deepspeed));
  accelerate_tool().read(config, file, draft);
}

/// What the program itself says: that it is TRL, and which of its trainers.
void read_trl(const ConfigNode& root, const std::string& file, Draft& draft) {
  const ConfigNode* which = find_in(root, "trl");
  if (which == nullptr) return;
  const Setting setting{file, "trl", which};
  for (const std::string_view trainer : {"dpo", "reward", "grpo"}) {
    if (setting.is(trainer)) return draft.set(fact::kLibrary, fmt::format("trl-{}", trainer), setting);
  }
  draft.set(fact::kLibrary, "trl", setting);
  if (setting.is("sft")) return;
  draft.not_modelled(setting, fmt::format("\"vramfit rehearse --recipe trl-{}\" has it", setting.text()));
}

constexpr std::array kNoneOfRecipes{IgnoredKeys{"", ""}};
constexpr KeyTable kRecipe{"torchtune's recipes, which take key=value", {}, {}, kNoneOfRecipes};
void read_recipe_flags(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_keys(root, file, "", kRecipe, draft);
}

constexpr std::array kAxolotlOthers{UnmodelledKeys{"several configurations, one after another", "sweep"}};
constexpr std::array kAxolotlIgnored{IgnoredKeys{
    "where it runs, and what is shown", "launcher cloud debug debug_text_only debug_num_examples prompter shard"}};
constexpr KeyTable kAxolotl{"axolotl train", {}, kAxolotlOthers, kAxolotlIgnored};
void read_axolotl_options(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_keys(root, file, "", kAxolotl, draft);
}

constexpr ConfigTool kTuneRunFlags{"torchtune", "flags of tune run", never, read_recipe_flags};
constexpr ConfigTool kAxolotlOptions{"axolotl", "options of axolotl train", never, read_axolotl_options};
constexpr ConfigTool kAccelerateFlags{"accelerate launch", "flags of accelerate launch", never, read_accelerate_flags};
constexpr ConfigTool kTorchrunTool{"torchrun", "flags of torchrun", never, read_torchrun};
constexpr ConfigTool kDeepspeedFlags{"deepspeed", "flags of the deepspeed program", never, read_deepspeed_flags};
constexpr ConfigTool kTrl{"trl", "TRL's program", never, read_trl};

}  // namespace

const ConfigTool& accelerate_flags_tool() { return kAccelerateFlags; }
const ConfigTool& torchrun_tool() { return kTorchrunTool; }
const ConfigTool& deepspeed_flags_tool() { return kDeepspeedFlags; }
const ConfigTool& trl_program_tool() { return kTrl; }
const ConfigTool& recipe_flags_tool() { return kTuneRunFlags; }
const ConfigTool& axolotl_options_tool() { return kAxolotlOptions; }

}  // namespace vramfit
