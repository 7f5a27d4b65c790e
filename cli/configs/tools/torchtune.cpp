// torchtune's recipes (0.6.1, recipes/configs). dtype bf16 is weights, gradients and states in bf16.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cli/configs/tools.h"
#include "cli/configs/tools/shared.h"
#include "cli/configs/tools/torchtune_models.h"

namespace vramfit {
namespace {

/// The last part of a component's dotted name; "" where there is none.
std::string component(const Setting& setting) {
  const ConfigNode* name = find_in(*setting.node, "_component_");
  if (name == nullptr) return "";
  return name->text.substr(name->text.rfind('.') + 1);
}

void read_dtype(const Setting& setting, Draft& draft) {
  if (setting.is("bf16")) {
    draft.set("precision", "bf16-pure", setting);
  } else if (setting.is("fp32")) {
    draft.set("precision", "fp32", setting);
  } else {
    draft.not_modelled(setting, "a dtype that torchtune's training has no rules for");
  }
}

constexpr std::array kTokenizerKeys{KeyRow{"max_seq_len", read_count<kSeqLen>}};
constexpr std::array kTokenizerIgnored{
    IgnoredKeys{"which tokenizer",
                "_component_ path merges_file merges_path image_size special_tokens_path prompt_template vocab_path "
                "truncation_type"}};
constexpr KeyTable kTokenizerTable{"torchtune's tokenizer", kTokenizerKeys, {}, kTokenizerIgnored};

void read_tokenizer(const Setting& setting, Draft& draft) {
  const ConfigNode* length = find_in(*setting.node, "max_seq_len");
  if (length == nullptr || length->is_null()) {
    draft.set(fact::kAnyLength, "on", setting, "has no max_seq_len: give the longest row as --seq-len");
  }
  read_keys(setting, kTokenizerTable, draft);
}

constexpr std::array kOptimizerParts{KeyRow{"_component_", read_part}, KeyRow{"fused", read_part}};
constexpr std::array kOptimizerOthers{
    UnmodelledKeys{"a third average, or another update", "amsgrad capturable differentiable percentile_clipping"},
    UnmodelledKeys{"states or pages of another kind than the name's", "optim_bits is_paged min_8bit_size"},
    UnmodelledKeys{"weights that are updated one by one", "foreach", "true"},
};
constexpr std::array kOptimizerIgnored{
    IgnoredKeys{"no memory depends on it", "lr betas eps weight_decay maximize block_wise"}};
constexpr KeyTable kOptimizerTable{"torchtune's optimizer", kOptimizerParts, kOptimizerOthers, kOptimizerIgnored};

constexpr std::array kLossParts{KeyRow{"_component_", read_part}, KeyRow{"num_output_chunks", read_part}};
constexpr std::array kLossIgnored{IgnoredKeys{"no memory depends on it", "ignore_index"}};
constexpr KeyTable kLossTable{"torchtune's loss", kLossParts, {}, kLossIgnored};

void read_optimizer(const Setting& setting, Draft& draft) {
  const ConfigNode* name = find_in(*setting.node, "_component_");
  const std::string full = name == nullptr ? "" : name->text;
  const ConfigNode* fused = find_in(*setting.node, "fused");
  const bool is_fused = fused != nullptr && !Setting{setting.file, setting.key, fused}.is_off();
  struct Name {
    std::string_view theirs, fused, plain;
  };
  constexpr std::array kNames{
      Name{"torch.optim.AdamW", "adamw:fused", "adamw:foreach"},
      Name{"bitsandbytes.optim.AdamW8bit", "adamw-8bit:fused", "adamw-8bit:fused"},
      Name{"bitsandbytes.optim.PagedAdamW", "adamw:paged", "adamw:paged"},
      Name{"bitsandbytes.optim.PagedAdamW32bit", "adamw:paged", "adamw:paged"},
      Name{"bitsandbytes.optim.PagedAdamW8bit", "adamw-8bit:paged", "adamw-8bit:paged"},
  };
  const auto* const found = std::ranges::find(kNames, full, &Name::theirs);
  if (found == kNames.end()) {
    draft.not_modelled(setting, fmt::format("{}, an optimizer without rules here", full.empty() ? "none" : full));
  } else {
    draft.set("optimizer", std::string(is_fused ? found->fused : found->plain), setting);
    read_keys(setting, kOptimizerTable, draft);
  }
}

void read_in_backward(const Setting& setting, Draft& draft) {
  draft.set("optimizer_in_backward", setting.flag() ? "on" : "off", setting);
}

void read_loss(const Setting& setting, Draft& draft) {
  const std::string name = component(setting);
  if (name == "CEWithChunkedOutputLoss") {
    const ConfigNode* chunks = find_in(*setting.node, "num_output_chunks");
    const std::int64_t count =
        chunks == nullptr ? 8 : Setting{setting.file, setting.key + ".num_output_chunks", chunks}.whole(1, 4096);
    draft.set("loss", fmt::format("chunked:{}", count), setting);
    read_keys(setting, kLossTable, draft);
  } else if (name == "CrossEntropyLoss") {
    draft.set("loss", "full", setting);
    read_keys(setting, kLossTable, draft);
  } else {
    draft.not_modelled(setting, fmt::format("{}, a loss without rules here", name));
  }
}

void read_ac_mode(const Setting& setting, Draft& draft) {
  if (setting.is("full")) {
    draft.forget("checkpointing");
    draft.set("checkpointing", "full", setting);
  } else if (setting.is("selective")) {
    draft.understand(setting, "every ac_option-th layer");
  } else if (!setting.is_off()) {
    draft.not_modelled(setting, "checkpointing without rules here");
  }
}
void read_ac_option(const Setting& setting, Draft& draft) { draft.understand(setting, "what ac_mode selective takes"); }

/// It comes before enable_activation_checkpointing.
void finish_selective(const ConfigNode& root, const std::string& file, Draft& draft) {
  const Setting mode{file, "ac_mode", find_in(root, "ac_mode")};
  const Setting option{file, "ac_option", find_in(root, "ac_option")};
  if (mode.node == nullptr || option.node == nullptr || !mode.is("selective")) return;
  if (option.is("op")) {
    draft.not_modelled(option, "torchtune's choice of ops that are kept");
    return;
  }
  const std::int64_t n = option.whole(1, 4096);
  draft.forget("checkpointing");
  draft.set("checkpointing", n == 1 ? "full" : fmt::format("every:{}", n), option);
}

void read_sharded_layers(const Setting& setting, Draft& draft) {
  std::vector<std::string> names = setting.texts();
  std::ranges::sort(names);
  if (names == std::vector<std::string>{"output", "tok_embeddings"}) {
    draft.set("wrap_embeddings", "on", setting);
  } else if (names.empty()) {
    draft.understand(setting, "none");
  } else {
    draft.not_modelled(setting, "units of other layers than embeddings and output");
  }
}
void read_cpu_offload(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("offload", "params", setting);
  } else {
    draft.understand(setting, "nothing in host memory");
  }
}
void read_activation_offload(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("offload", "activations", setting);
  } else {
    draft.understand(setting, "no activations in host memory");
  }
}
/// Packed rows come with masks for flex_attention and with positions, by which rotations are copied.
void read_dataset(const Setting& setting, Draft& draft) {
  const ConfigNode* packed = find_in(*setting.node, "packed");
  if (packed != nullptr && !packed->is_null() && Setting{setting.file, setting.key + ".packed", packed}.flag()) {
    draft.not_modelled({setting.file, setting.key + ".packed", packed}, "packed rows, with masks and positions");
    for (std::size_t i = 0; i < setting.node->keys.size(); ++i) {
      const ConfigNode& item = setting.node->items[i];
      if (&item == packed || item.is_null()) continue;
      draft.ignore({setting.file, fmt::format("{}.{}", setting.key, setting.node->keys[i]), &item}, "which data");
    }
  } else {
    draft.ignore(setting, "every row is taken as full");
  }
}
void read_reshard(const Setting& setting, Draft& draft) {
  draft.set("sharding", setting.flag() ? "full-shard" : "shard-grad-op", setting);
}

constexpr std::array kKeys{
    KeyRow{"model", read_torchtune_model},
    KeyRow{"batch_size", read_count<kMicroBatch>},
    KeyRow{"gradient_accumulation_steps", read_count<kGradAccum>},
    KeyRow{"dtype", read_dtype},
    KeyRow{"tokenizer", read_tokenizer},
    KeyRow{"optimizer", read_optimizer},
    KeyRow{"optimizer_in_bwd", read_in_backward},
    KeyRow{"loss", read_loss},
    KeyRow{"enable_activation_checkpointing", read_checkpointing},
    KeyRow{"ac_mode", read_ac_mode},
    KeyRow{"ac_option", read_ac_option},
    KeyRow{"custom_sharded_layers", read_sharded_layers},
    KeyRow{"fsdp_cpu_offload", read_cpu_offload},
    KeyRow{"enable_activation_offloading", read_activation_offload},
    KeyRow{"fsdp_reshard_after_forward", read_reshard},
    KeyRow{"data_parallel_replicate_dim", read_replicas},
    KeyRow{"data_parallel_shard_dim", read_shards},
    KeyRow{"clip_grad_norm", read_clipped_norm, true},
    KeyRow{"dataset", read_dataset},
};
constexpr std::array kOthers{
    UnmodelledKeys{"torch.compile", "compile"},
    UnmodelledKeys{"only data parallelism is modelled", "tensor_parallel_dim tensor_parallel_plan context_parallel_dim",
                   "1"},
    UnmodelledKeys{"FP8", "enable_fp8_training fp8_recipe_name"},
    UnmodelledKeys{"several models at once",
                   "teacher_model teacher_checkpointer kd_loss kd_ratio policy_model reward_and_value_model "
                   "ref_policy_checkpointer value_checkpointer reward_checkpointer ref_checkpointer "
                   "base_model ref_model"},
    UnmodelledKeys{"it is no training recipe",
                   "quantizer enable_kv_cache tasks prompt max_new_tokens max_generated_tokens top_k temperature "
                   "limit inference tokenizer_path"},
    UnmodelledKeys{"how parameters are wrapped under QLoRA", "memory_efficient_fsdp_wrap fsdp"},
    UnmodelledKeys{"it trains on CPUs", "device", "cuda"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"no memory depends on it",
                "output_dir seed shuffle epochs max_steps_per_epoch lr_scheduler checkpointer "
                "resume_from_checkpoint save_adapter_weights_only cudnn_deterministic_mode collate_fn datasets "
                "dataset_val run_val_every_n_steps batch_size_val keep_last_n_checkpoints epochs_to_save "
                "enable_async_checkpointing low_cpu_ram max_seq_length log_level whiten_rewards kl_coeff gamma lmbda "
                "ppo_epochs ppo_batch_size forward_batch_size num_steps min_response_length reward_penalty "
                "penalise_no_eos stop_token_ids name dataloader save_every_n_steps"},
    IgnoredKeys{"what is logged and measured", "metric_logger log_every_n_steps log_peak_memory_stats profiler"},
};
constexpr KeyTable kTable{"torchtune", kKeys, kOthers, kIgnored};

int score(const ConfigNode& root) {
  const bool has_component =
      std::ranges::any_of(root.items, [](const ConfigNode& item) { return find_in(item, "_component_") != nullptr; });
  return has_component ? kSure : 0;
}

/// OmegaConf's ${name}: the value of another key.
void resolve(ConfigNode& node, const ConfigNode& root) {
  for (ConfigNode& item : node.items) resolve(item, root);
  if (node.kind != ConfigNode::Kind::text || !node.text.starts_with("${") || !node.text.ends_with('}')) return;
  const ConfigNode* target = find_path(root, node.text.substr(2, node.text.size() - 3));
  if (target == nullptr || !target->is_scalar() || target->text.find("${") != std::string::npos) return;
  const int line = node.line, number = node.number;
  node = *target;
  node.line = line;
  node.number = number;
}

void read(const ConfigNode& root, const std::string& file, Draft& draft) {
  ConfigNode resolved = root;
  resolve(resolved, root);
  draft.assume(fact::kLibrary, "torchtune", "");
  read_keys(resolved, file, "", kTable, draft);
  finish_selective(resolved, file, draft);
  if (find_in(root, "optimizer") == nullptr) {
    draft.not_modelled(fmt::format("{} has no optimizer: it is no training recipe", file));
  }
  draft.assume(fact::kClipping, "off", "torchtune's default: --no-clip");
  draft.assume("grad_accum", "1", "torchtune's default");
  draft.assume("checkpointing", "none", "torchtune's default");
  draft.assume("wrap_embeddings", "off", "torchtune's default");
}

constexpr ConfigTool kTool{"torchtune", "a recipe's configuration of torchtune", score, read};

}  // namespace

const ConfigTool& torchtune_tool() { return kTool; }

}  // namespace vramfit
