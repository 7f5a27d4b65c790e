// Variables that stand before a launch, and the tasks that srun or mpirun starts.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/configs/key_table.h"
#include "cli/configs/tools/launchers.h"
#include "job/allocator/allocator_settings.h"

namespace vramfit {
namespace {

bool is_started_alone(const Draft& draft) {
  const std::string starter = draft.get(fact::kStarter).value_or("");
  return starter.empty() || starter.starts_with("python");
}

/// PYTORCH_CUDA_ALLOC_CONF; PyTorch skips what it can't parse, which is refused here.
void read_allocator(const Setting& setting, Draft& draft) {
  const std::string said = setting.text();
  try {
    const AllocatorSettings settings = parse_allocator_settings(said);
    AllocatorSettings expandable;
    expandable.expandable_segments = true;
    const bool is_usual = settings == AllocatorSettings{};
    draft.set("allocator", is_usual ? "native" : settings == expandable ? "expandable" : said, setting);
  } catch (const InputError& error) {
    draft.not_modelled(setting, fmt::format("settings of the allocator that can't be read: {}", error.what()));
  }
}

/// CUDA_VISIBLE_DEVICES: several that a single process sees are DataParallel's, in which the Trainer puts a model.
void read_visible(const Setting& setting, Draft& draft) {
  const std::vector<std::string> cards = setting.texts();
  const bool is_listed = !cards.empty() && std::ranges::none_of(cards, [](const std::string& card) {
    return card.find_first_of("$`- ") != std::string::npos && !card.starts_with("GPU-") && !card.starts_with("MIG-");
  });
  if (!is_listed) {
    draft.ignore(setting, "no list of cards; say how many with --gpus");
  } else if (cards.size() > 1 && is_started_alone(draft)) {
    draft.not_modelled(setting,
                       "several GPUs of one process, which the Trainer uses by DataParallel (with "
                       "\"torchrun --nproc_per_node N\" each has a process)");
  } else {
    draft.set(fact::kVisible, fmt::to_string(cards.size()), setting,
              fmt::format("{} visible; nothing else says how many", cards.size()));
  }
}

/// LLaMA-Factory starts torchrun with these (launcher.py).
void read_factorys(std::string_view name, const Setting& setting, Draft& draft) {
  if (draft.is(fact::kStarter, "llamafactory-cli") && setting.node->kind == ConfigNode::Kind::integer) {
    draft.set(name, fmt::to_string(setting.whole(1, 1 << 20)), setting);
  } else {
    draft.ignore(setting, "a variable for the command's own use");
  }
}
void read_factorys_processes(const Setting& setting, Draft& draft) { read_factorys(fact::kPerNode, setting, draft); }
void read_factorys_nodes(const Setting& setting, Draft& draft) { read_factorys(fact::kNodes, setting, draft); }

constexpr std::array kVariables{
    KeyRow{"PYTORCH_CUDA_ALLOC_CONF", read_allocator},
    KeyRow{"PYTORCH_ALLOC_CONF", read_allocator},
    KeyRow{"CUDA_VISIBLE_DEVICES", read_visible},
    KeyRow{"NPROC_PER_NODE", read_factorys_processes},
    KeyRow{"NNODES", read_factorys_nodes},
};
constexpr std::array kUnmodelledVariables{
    UnmodelledKeys{"memory without the allocator's cache", "PYTORCH_NO_CUDA_MEMORY_CACHING"},
    UnmodelledKeys{"a workspace of cuBLAS of another size", "CUBLAS_WORKSPACE_CONFIG CUBLASLT_WORKSPACE_SIZE"},
    UnmodelledKeys{"buffers of NCCL of another size or number",
                   "NCCL_BUFFSIZE NCCL_LL_BUFFSIZE NCCL_LL128_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS "
                   "NCCL_MIN_CTAS NCCL_MAX_CTAS NCCL_NCHANNELS_PER_NET_PEER"},
    UnmodelledKeys{"a setting of accelerate by a variable; write it as a flag of \"accelerate launch\"",
                   "ACCELERATE_USE_* ACCELERATE_MIXED_PRECISION ACCELERATE_DYNAMO_* ACCELERATE_DEEPSPEED_* "
                   "ACCELERATE_GRADIENT_ACCUMULATION_STEPS FSDP_*"},
    UnmodelledKeys{"it trains on CPUs", "USE_CPU ACCELERATE_USE_CPU"},
};
constexpr std::array kIgnoredVariables{
    IgnoredKeys{"how processes find each other",
                "MASTER_ADDR MASTER_PORT NODE_RANK RANK LOCAL_RANK WORLD_SIZE FORCE_TORCHRUN NCCL_* GLOO_* "
                "TORCH_NCCL_* UCX_* FI_* OMPI_* SLURM_*"},
    IgnoredKeys{"no memory depends on it",
                "CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_DEVICE_MAX_CONNECTIONS OMP_NUM_THREADS MKL_NUM_THREADS "
                "TOKENIZERS_PARALLELISM HF_* HUGGING* TRANSFORMERS_* WANDB_* MLFLOW_* COMET_* PYTHON* PATH "
                "LD_LIBRARY_PATH LD_PRELOAD HOME TORCH_LOGS TORCH_SHOW_CPP_STACKTRACES TORCHELASTIC_* TQDM_* "
                "ACCELERATE_LOG_LEVEL CUDA_HOME TMPDIR DISABLE_VERSION_CHECK USE_MODELSCOPE_HUB VIRTUAL_ENV"},
};
constexpr KeyTable kEnvironmentTable{"the environment", kVariables, kUnmodelledVariables, kIgnoredVariables};

void read_environment(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_keys(root, file, "", kEnvironmentTable, draft);
}

/// A launcher that a scheduler starts says itself how many processes there are.
void read_tasks(std::string_view name, const Setting& setting, Draft& draft) {
  if (is_started_alone(draft)) {
    draft.set(name, fmt::to_string(setting.whole(1, 1 << 20)), setting);
  } else {
    draft.ignore(setting, fmt::format("{} says how many GPUs there are", *draft.get(fact::kStarter)));
  }
}
void read_task_nodes(const Setting& setting, Draft& draft) { read_tasks(fact::kNodes, setting, draft); }
void read_ranks(const Setting& setting, Draft& draft) { read_tasks(fact::kProcesses, setting, draft); }
void read_ranks_of_node(const Setting& setting, Draft& draft) { read_tasks(fact::kPerNode, setting, draft); }
void read_unread(const Setting& setting, Draft& draft) {
  draft.ignore(setting, "has flags that can't be read; say how many GPUs there are with --gpus");
}

constexpr std::array kTasks{
    KeyRow{"nodes", read_task_nodes},
    KeyRow{"ranks", read_ranks},
    KeyRow{"per_node", read_ranks_of_node},
    KeyRow{"flags", read_unread},
};
constexpr KeyTable kTaskTable{"srun or mpirun", kTasks, {}, {}};
void read_scheduler(const ConfigNode& root, const std::string& file, Draft& draft) {
  read_keys(root, file, "", kTaskTable, draft);
}

int never(const ConfigNode& /*root*/) { return 0; }

constexpr ConfigTool kEnvironment{"environment", "variables", never, read_environment};
constexpr ConfigTool kScheduler{"scheduler", "tasks of srun or mpirun", never, read_scheduler};

}  // namespace

const ConfigTool& environment_tool() { return kEnvironment; }
const ConfigTool& scheduler_tool() { return kScheduler; }

}  // namespace vramfit
