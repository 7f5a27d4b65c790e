// torchtitan's TOML (0.1 to 0.2, torchtitan/config/job_config.py, and the older places of the same keys). Since 2026 it
// is configured in Python.
#include <array>

#include <fmt/format.h>

#include "cli/configs/tools.h"
#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/titan_models.h"

namespace vramfit {
namespace {

constexpr std::array kModelParts{KeyRow{"name", read_part}, KeyRow{"flavor", read_part}};
constexpr std::array kModelOthers{
    UnmodelledKeys{"linears of another kind, such as FP8", "converters"},
    UnmodelledKeys{"norms of another kind", "norm_type", "rmsnorm"},
};
constexpr std::array kModelIgnored{
    IgnoredKeys{"which tokenizer and weights, and what is printed",
                "tokenizer_path tokenizer_flavor hf_assets_path print_after_conversion"}};
constexpr KeyTable kModel{"torchtitan's [model]", kModelParts, kModelOthers, kModelIgnored};

void read_titan_model(const Setting& setting, Draft& draft) {
  const auto value = [&](std::string_view key) {
    const ConfigNode* node = find_in(*setting.node, key);
    return node == nullptr ? std::string() : node->text;
  };
  read_keys(setting, kModel, draft);
  if (const TitanModel* known = titan_flavor(value("name"), value("flavor"))) {
    draft.set(fact::kModel, std::string(known->model), setting);
    return;
  }
  draft.ignore(setting, fmt::format("the model of {} {} isn't known here; give MODEL", value("name"), value("flavor")));
}

/// -1 is by the others.
void read_global_batch(const Setting& setting, Draft& draft) {
  if (setting.whole(-1, std::int64_t{1} << 28) < 1) {
    draft.understand(setting, "micro-batch x data-parallel ranks");
  } else {
    read_count<kGlobalBatch>(setting, draft);
  }
}
void read_dtype(const Setting& setting, Draft& draft) {
  if (setting.is("float32")) {
    draft.set("storage_dtype", "fp32", setting);
  } else if (setting.is("bfloat16")) {
    draft.set("precision", "bf16-pure", setting);
  } else {
    draft.not_modelled(setting, "a dtype without rules here");
  }
}
void read_param_dtype(const Setting& setting, Draft& draft) {
  if (!setting.is("bfloat16") && !setting.is("float32")) {
    draft.not_modelled(setting, "a dtype without rules here");
  } else if (!draft.has("precision")) {
    draft.set("precision", setting.is("bfloat16") ? "bf16-mixed" : "fp32", setting);
  } else {
    draft.understand(setting, "already said");
  }
}
void read_reduce_dtype(const Setting& setting, Draft& draft) {
  if (setting.is("float32") || setting.is("bfloat16")) {
    draft.set("reduce_dtype", setting.is("float32") ? "fp32" : "bf16", setting);
  } else {
    draft.not_modelled(setting, "a dtype without rules here");
  }
}
void read_offload(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("offload", "params", setting);
  } else {
    draft.understand(setting, "nothing in host memory");
  }
}

void read_reshard(const Setting& setting, Draft& draft) {
  if (setting.is("default") || setting.is("always")) {
    // Without a pipeline both reshard all but what FSDP2 keeps of its root, which is no unit here.
    draft.set("reshard", setting.is("always") ? "always" : "default", setting);
  } else {
    draft.set("reshard", "never", setting);
  }
}

constexpr std::array kTrainingKeys{
    KeyRow{"local_batch_size", read_count<kMicroBatch>},
    KeyRow{"batch_size", read_count<kMicroBatch>},
    KeyRow{"global_batch_size", read_global_batch},
    KeyRow{"seq_len", read_count<kSeqLen>},
    KeyRow{"dtype", read_dtype},
    KeyRow{"mixed_precision_param", read_param_dtype},
    KeyRow{"mixed_precision_reduce", read_reduce_dtype},
    KeyRow{"enable_cpu_offload", read_offload},
    KeyRow{"data_parallel_replicate_degree", read_replicas},
    KeyRow{"data_parallel_shard_degree", read_shards},
    KeyRow{"fsdp_reshard_after_forward", read_reshard},
    KeyRow{"deterministic", read_determinism},
};
constexpr std::array kTrainingOthers{
    UnmodelledKeys{"torch.compile", "compile"},
    UnmodelledKeys{"only data parallelism is modelled", "tensor_parallel_degree pipeline_parallel_degree", "1"},
};
constexpr std::array kTrainingIgnored{
    IgnoredKeys{"no memory depends on it",
                "max_norm steps dataset dataset_path gc_freq gc_debug warmup_steps seed dataloader "
                "enable_loss_parallel"}};
constexpr KeyTable kTraining{"torchtitan's [training]", kTrainingKeys, kTrainingOthers, kTrainingIgnored};

constexpr std::array kParallelKeys{
    KeyRow{"data_parallel_replicate_degree", read_replicas},
    KeyRow{"data_parallel_shard_degree", read_shards},
    KeyRow{"fsdp_reshard_after_forward", read_reshard},
};
constexpr std::array kParallelOthers{
    UnmodelledKeys{"only data parallelism is modelled",
                   "tensor_parallel_degree pipeline_parallel_degree context_parallel_degree expert_parallel_degree "
                   "expert_tensor_parallel_degree",
                   "1"},
    UnmodelledKeys{"the autograd of torch.compile", "enable_compiled_autograd"},
};
constexpr std::array kParallelIgnored{
    IgnoredKeys{"belongs to other kinds of parallelism",
                "pipeline_parallel_* context_parallel_* expert_parallel_* tensor_parallel_* disable_loss_parallel "
                "enable_async_tensor_parallel module_fqns_per_model_part enable_loss_parallel "
                "enable_sequence_parallel"}};
constexpr KeyTable kParallel{"torchtitan's [parallelism]", kParallelKeys, kParallelOthers, kParallelIgnored};

constexpr std::array kCheckpointingParts{KeyRow{"mode", read_part}, KeyRow{"selective_ac_option", read_part},
                                         KeyRow{"memory_budget", read_part}};
constexpr std::array kCheckpointingOthers{
    UnmodelledKeys{"other products that a selective policy recomputes", "per_op_sac_force_recompute_mm_shapes_by_fqns"},
    UnmodelledKeys{"a recomputation that ends early", "early_stop"},
};
constexpr std::array kCheckpointingIgnored{IgnoredKeys{
    "no memory of the GPU depends on it", "preserve_rng_state determinism_check debug visualize_memory_budget_pareto"}};
constexpr KeyTable kCheckpointing{"torchtitan's [activation_checkpoint]", kCheckpointingParts, kCheckpointingOthers,
                                  kCheckpointingIgnored};

void read_checkpointing_section(const Setting& setting, Draft& draft) {
  const auto part = [&](std::string_view key) {
    return Setting{setting.file, fmt::format("{}.{}", setting.key, key), find_in(*setting.node, key)};
  };
  const Setting mode = part("mode"), option = part("selective_ac_option"), budget = part("memory_budget");
  read_keys(setting, kCheckpointing, draft);
  if (mode.node == nullptr) return;
  if (mode.is("none") || mode.is("full")) {
    draft.set("checkpointing", mode.is("full") ? "full" : "none", mode);
  } else if (mode.is("memory_budget")) {
    draft.not_modelled(budget.node == nullptr ? mode : budget, "a memory budget, which torch.compile honours");
  } else if (!mode.is("selective")) {
    mode.fail(fmt::format("{} is none of none, selective, full, memory_budget", shown(*mode.node)));
  } else if (option.node == nullptr || option.is("2")) {
    draft.set("checkpointing", "every:2", option.node == nullptr ? mode : option);
  } else if (option.is("op")) {
    draft.set("checkpointing", "selective", option);
  } else {
    const std::int64_t n = option.whole(1, 4096);
    draft.set("checkpointing", n == 1 ? "full" : fmt::format("every:{}", n), option);
  }
}

constexpr std::array kOptimizerParts{KeyRow{"name", read_part}, KeyRow{"implementation", read_part},
                                     KeyRow{"fused", read_part}, KeyRow{"early_step_in_backward", read_part}};
constexpr std::array kOptimizerIgnored{IgnoredKeys{"no memory depends on it", "lr eps beta1 beta2 weight_decay"}};
constexpr KeyTable kOptimizer{"torchtitan's [optimizer]", kOptimizerParts, {}, kOptimizerIgnored};

void read_optimizer(const Setting& setting, Draft& draft) {
  const auto part = [&](std::string_view key) {
    return Setting{setting.file, fmt::format("{}.{}", setting.key, key), find_in(*setting.node, key)};
  };
  const Setting name = part("name"), implementation = part("implementation"), early = part("early_step_in_backward"),
                fused = part("fused");
  read_keys(setting, kOptimizer, draft);
  if (early.node != nullptr && early.flag()) draft.set("optimizer_in_backward", "on", early);
  if (name.node != nullptr && !name.is("adamw")) {
    draft.not_modelled(name, "an optimizer without rules here");
    return;
  }
  std::string kind = "fused";
  if (implementation.node != nullptr) kind = implementation.is("for-loop") ? "loop" : implementation.text();
  if (fused.node != nullptr && !fused.flag()) kind = "foreach";
  draft.set("optimizer", "adamw:" + kind, implementation.node != nullptr ? implementation : setting);
}

void read_compile(const Setting& setting, Draft& draft) {
  const ConfigNode* enable = find_in(*setting.node, "enable");
  if (enable == nullptr || Setting{setting.file, setting.key, enable}.is_off()) {
    draft.ignore(setting, "off");
  } else {
    draft.not_modelled(setting, "torch.compile");
  }
}

constexpr std::array kDebugKeys{KeyRow{"deterministic", read_determinism}};
constexpr std::array kDebugIgnored{IgnoredKeys{"no memory of a step depends on it",
                                               "seed deterministic_warn_only print_config save_config_file "
                                               "enable_structured_logging moe_force_load_balance"}};
constexpr KeyTable kDebug{"torchtitan's [debug]", kDebugKeys, {}, kDebugIgnored};
void read_debug(const Setting& setting, Draft& draft) { read_keys(setting, kDebug, draft); }
void read_training(const Setting& setting, Draft& draft) { read_keys(setting, kTraining, draft); }
void read_parallel(const Setting& setting, Draft& draft) { read_keys(setting, kParallel, draft); }

constexpr std::array kKeys{
    KeyRow{"model", read_titan_model},    KeyRow{"training", read_training},
    KeyRow{"parallelism", read_parallel}, KeyRow{"activation_checkpoint", read_checkpointing_section},
    KeyRow{"optimizer", read_optimizer},  KeyRow{"compile", read_compile},
    KeyRow{"debug", read_debug},
};
constexpr std::array kOthers{
    UnmodelledKeys{"replicas that may fail", "fault_tolerance"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"no memory of a step depends on it",
                "job profiling metrics lr_scheduler checkpoint comm memory_estimation validation logging "
                "dataset"},
    IgnoredKeys{"belongs to the converters that aren't named", "float8 mx quantize experimental"},
};
constexpr KeyTable kTable{"torchtitan", kKeys, kOthers, kIgnored};

int score(const ConfigNode& root) {
  const ConfigNode* training = find_in(root, "training");
  if (training == nullptr || !training->is_map()) return 0;
  const bool has_more = find_in(root, "parallelism") != nullptr || find_in(root, "activation_checkpoint") != nullptr ||
                        find_in(root, "model") != nullptr || find_in(root, "job") != nullptr;
  return has_more ? kSure : 0;
}

void read(const ConfigNode& root, const std::string& file, Draft& draft) {
  draft.assume(fact::kLibrary, "torchtitan", "");
  read_keys(root, file, "", kTable, draft);
  draft.assume("micro_batch", "8", "torchtitan's default");
  draft.assume("seq_len", "2048", "torchtitan's default");
  draft.assume("checkpointing", "every:2", "torchtitan's default");
}

constexpr ConfigTool kTool{"torchtitan", "torchtitan's TOML", score, read};

}  // namespace

const ConfigTool& torchtitan_tool() { return kTool; }

}  // namespace vramfit
