#include "cli/configs/tools/shared.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "cli/configs/syntax/json.h"

namespace vramfit {
namespace {

struct Name {
  std::string_view theirs, ours;
};

// transformers 5.23, training_args.py, OptimizerNames; those that have the same states and updates here.
constexpr std::array kOptimizers{
    Name{"adamw_torch_fused", "adamw:fused"},
    Name{"adamw_torch", "adamw:foreach"},
    Name{"adamw_hf", "adamw:foreach"},
    Name{"adamw_bnb_8bit", "adamw-8bit:fused"},
    Name{"adamw_8bit", "adamw-8bit:fused"},
    Name{"paged_adamw", "adamw:paged"},
    Name{"paged_adamw_32bit", "adamw:paged"},
    Name{"paged_adamw_8bit", "adamw-8bit:paged"},
    Name{"adafactor", "adafactor:fused"},
    Name{"sgd", "sgd:fused"},
    Name{"adamw_torch_8bit", "adamw-8bit:torchao"},
    Name{"adamw_torch_4bit", "adamw-4bit:torchao"},
};

constexpr std::array kAttentions{
    Name{"flash_attention_2", "flash-attn"},
    Name{"fa2", "flash-attn"},
    Name{"sdpa", "auto"},
    Name{"eager", "math"},
    Name{"disabled", "math"},
    Name{"auto", "auto"},
};

constexpr std::array kDtypes{
    Name{"float32", "fp32"},        Name{"fp32", "fp32"}, Name{"torch.float32", "fp32"},
    Name{"bfloat16", "bf16"},       Name{"bf16", "bf16"}, Name{"float16", "fp16"},
    Name{"torch.bfloat16", "bf16"}, Name{"fp16", "fp16"}, Name{"torch.float16", "fp16"},
};

template <typename Table>
std::string_view meant_by(const Table& table, const Setting& setting) {
  for (const Name& name : table) {
    if (setting.is(name.theirs)) return name.ours;
  }
  return "";
}

}  // namespace

void read_hf_optimizer(const Setting& setting, Draft& draft) {
  const std::string_view ours = meant_by(kOptimizers, setting);
  if (ours.empty()) {
    draft.not_modelled(setting, "an optimizer without rules here");
  } else {
    draft.set("optimizer", std::string(ours), setting);
  }
}

void read_hf_attention(const Setting& setting, Draft& draft) {
  const std::string_view ours = meant_by(kAttentions, setting);
  if (ours.empty()) {
    draft.not_modelled(setting, "attention without rules here");
  } else {
    draft.set("attention", std::string(ours), setting);
  }
}

void read_weights_dtype(const Setting& setting, Draft& draft) {
  const std::string_view ours = meant_by(kDtypes, setting);
  if (setting.is("auto")) {
    draft.set(fact::kWeights, "auto", setting, "weights in the dtype of the checkpoint");
  } else if (ours.empty()) {
    draft.not_modelled(setting, "weights of a dtype without rules here");
  } else {
    draft.set(fact::kWeights, std::string(ours), setting);
  }
}

void read_packed_documents(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kPacking, "on", setting, "documents share rows, and each sees itself alone: --packing bfd");
  } else {
    draft.understand(setting, "every row is taken as full");
  }
}

void read_bf16(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kMixedHere, "bf16", setting);
  } else {
    draft.set(fact::kBf16Off, "off", setting, "no bf16 by these arguments");
  }
}
void read_fp16(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kMixedHere, "fp16", setting);
  } else {
    draft.understand(setting, "no fp16 by these arguments");
  }
}

void read_checkpointing(const Setting& setting, Draft& draft) {
  if (draft.has("checkpointing") && setting.flag()) {
    draft.understand(setting, "already said");
  } else {
    draft.set("checkpointing", setting.flag() ? "full" : "none", setting);
  }
}

void read_reentrant(const Setting& setting, Draft& draft) {
  draft.set(fact::kReentrant, setting.flag() ? "on" : "off", setting, "whether checkpoints re-enter autograd");
}

namespace {

void read_every_nth(const Setting& setting, Draft& draft) {
  const std::int64_t n = setting.whole(1, 4096);
  if (n == 1) {
    draft.understand(setting, "every layer");
    return;
  }
  draft.forget("checkpointing");
  draft.set("checkpointing", fmt::format("every:{}", n), setting);
}

/// trl 1.16, trainer/sft_trainer.py: __init__, which takes the key out. Another library hands it to torch.
void read_selective(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.not_modelled(setting, "selective checkpointing");
  } else {
    draft.understand(setting, "whole layers are computed again");
  }
}

/// Checkpoints that re-enter autograd don't stop early anyway.
void read_early_stop(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.understand(setting, "torch's default");
  } else if (draft.is(fact::kReentrant, "off")) {
    draft.not_modelled(setting, "a layer is computed again to its end, which keeps other tensors");
  } else {
    draft.ignore(setting, "checkpoints that re-enter autograd don't read it");
  }
}

constexpr std::array kCheckpointingKeys{
    KeyRow{"every_n_layers", read_every_nth},
    KeyRow{"use_reentrant", read_reentrant},
    KeyRow{"selective", read_selective},
    KeyRow{"early_stop", read_early_stop},
};
constexpr std::array kCheckpointingOthers{
    UnmodelledKeys{"activations in host memory", "offload"},
    UnmodelledKeys{"checkpoints that list each operation, and fail where they re-enter autograd", "debug"},
};
constexpr std::array kCheckpointingIgnored{
    IgnoredKeys{"no memory of the GPU depends on it", "preserve_rng_state determinism_check"}};
constexpr KeyTable kCheckpointingTable{"gradient_checkpointing_kwargs", kCheckpointingKeys, kCheckpointingOthers,
                                       kCheckpointingIgnored};

/// The text of a command line, or of a key whose value is one.
ConfigNode options_in(const Setting& setting) {
  try {
    ConfigNode map = read_json(setting.node->text, setting.file);
    for (ConfigNode& item : map.items) item.line = setting.node->line;
    return map;
  } catch (const InputError&) {
    setting.fail(fmt::format("{} is not valid JSON", shown(*setting.node)));
  }
}

/// torch refuses keys that it doesn't know, or hands them to the layer.
bool is_option(std::string_view key, const Draft& draft) {
  ConfigNode single;
  single.kind = ConfigNode::Kind::map;
  put(single, key, {});
  const bool is_known = known_keys(single, kCheckpointingTable) > 0;
  return is_known && (key != "selective" || draft.is(fact::kLibrary, "trl"));
}

/// use_reentrant first: what other options mean depends on it.
ConfigNode options_in_order(const Setting& setting, Draft& draft) {
  ConfigNode ordered = *setting.node;
  ordered.keys.clear();
  ordered.items.clear();
  for (const bool is_first : {true, false}) {
    for (std::size_t i = 0; i < setting.node->keys.size(); ++i) {
      const std::string& key = setting.node->keys[i];
      if ((key == "use_reentrant") != is_first) continue;
      const ConfigNode& item = setting.node->items[i];
      if (is_option(key, draft)) {
        put(ordered, key, item);
      } else {
        const std::string& file = item.file.empty() ? setting.file : item.file;
        draft.not_modelled({file, fmt::format("{}.{}", setting.key, key), &item},
                           "torch.utils.checkpoint knows of no such option");
      }
    }
  }
  return ordered;
}

}  // namespace

/// What remains besides every_n_layers and offload is what torch.utils.checkpoint gets, whose use_reentrant is true
/// unless it is told (transformers 5.23, trainer.py; torch 2.11, utils/checkpoint.py).
void read_checkpointing_options(const Setting& setting, Draft& draft) {
  if (setting.node->is_scalar() && setting.node->text.starts_with('{')) {
    const ConfigNode map = options_in(setting);
    draft.pass_over(setting);
    return read_checkpointing_options({setting.file, setting.key, &map}, draft);
  }
  if (!setting.node->is_map()) setting.fail(fmt::format("{} is not a map", shown(*setting.node)));
  const ConfigNode options = options_in_order(setting, draft);
  read_keys({setting.file, setting.key, &options}, kCheckpointingTable, draft);
  if (setting.node->keys.empty()) return;
  draft.derive(fact::kCheckpointOptions, "on");
  const auto is_taken = [](const std::string& key) {
    return key == "every_n_layers" || key == "offload" || key == "selective";
  };
  if (std::ranges::all_of(options.keys, is_taken)) return;
  draft.assume(fact::kReentrant, "on", "torch.utils.checkpoint's default, where it is given options");
}

void read_replicas(const Setting& setting, Draft& draft) {
  draft.set(fact::kReplicas, fmt::to_string(setting.whole(1, 1 << 20)), setting);
}
void read_shards(const Setting& setting, Draft& draft) {
  if (setting.node->kind == ConfigNode::Kind::integer && setting.node->integer < 0) {
    draft.understand(setting, "all GPUs");
    return;
  }
  draft.set(fact::kShards, fmt::to_string(setting.whole(1, 1 << 20)), setting);
}

namespace {

constexpr std::array kParallelKeys{
    KeyRow{"dp_replicate_size", read_replicas},
    KeyRow{"dp_shard_size", read_shards},
};
constexpr std::array kParallelOthers{
    UnmodelledKeys{"only data parallelism is modelled", "tp_size cp_size sp_size", "1"},
};
constexpr std::array kParallelIgnored{
    IgnoredKeys{"belongs to context or sequence parallelism", "cp_* sp_* tp_enable_async_tp"}};
constexpr KeyTable kParallelTable{"parallelism_config", kParallelKeys, kParallelOthers, kParallelIgnored,
                                  "parallelism_config_"};

}  // namespace

void read_parallelism(const Setting& setting, Draft& draft) { read_keys(setting, kParallelTable, draft); }

void use_deepspeed(const Setting& by, Draft& draft) {
  // Of accelerate's other kinds the Trainer makes DeepSpeed by itself; FSDP is a contradiction.
  if (draft.is(fact::kParallel, "ddp") || draft.is(fact::kParallel, "none")) draft.forget(fact::kParallel);
  draft.set(fact::kParallel, "deepspeed", by);
}

void read_deepspeed(const Setting& setting, Draft& draft) {
  if (setting.is_off()) {
    draft.ignore(setting, "off");
    return;
  }
  use_deepspeed(setting, draft);
  if (setting.node->is_map()) {
    read_deepspeed_keys(setting, draft);
  } else {
    draft.refer(setting, setting.text());
  }
}

namespace {

bool is_pattern(std::string_view name) {
  return std::ranges::any_of(name,
                             [](unsigned char c) { return std::isalnum(c) == 0 && c != '_' && c != '.' && c != '-'; });
}

}  // namespace

void read_lora_targets(const Setting& setting, Draft& draft) {
  std::vector<std::string> names = setting.texts();
  if (std::ranges::any_of(names, is_pattern)) {
    return draft.not_modelled(setting,
                              "a pattern over names; a list of names, such as [q_proj, v_proj], or all-linear is read");
  }
  if (names.size() == 1 && (names.front() == "all-linear" || names.front() == "all")) names = {"all-linear"};
  draft.set("lora_targets", fmt::format("{}", fmt::join(names, ",")), setting,
            fmt::format("--lora-targets {}", fmt::join(names, ",")));
}
void read_lora_alpha(const Setting& setting, Draft& draft) {
  draft.set("lora_alpha", fmt::format("{}", setting.real()), setting);
}
void read_lora_dropout(const Setting& setting, Draft& draft) {
  draft.set("lora_dropout", fmt::format("{}", setting.real()), setting);
}
void read_rslora(const Setting& setting, Draft& draft) { draft.set("rslora", setting.flag() ? "on" : "off", setting); }
void read_dora(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("dora", "on", setting);
  } else {
    draft.understand(setting, "adapters without magnitudes");
  }
}

void read_load_in_4bit(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kBits, "4", setting);
  } else {
    draft.understand(setting, "weights as they are");
  }
}
void read_load_in_8bit(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set(fact::kBits, "8", setting);
  } else {
    draft.understand(setting, "weights as they are");
  }
}

void read_clipped_norm(const Setting& setting, Draft& draft) {
  const bool is_clipped = !setting.is_off() && !setting.node->is_null() && setting.real() > 0;
  draft.set(fact::kClipping, is_clipped ? "on" : "off", setting,
            is_clipped ? "gradients are clipped, as in every estimate without --no-clip" : "--no-clip");
}

void read_part(const Setting& setting, Draft& draft) {
  draft.understand(setting, "part of a setting that is read as a whole");
}

void read_determinism(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("deterministic", "on", setting);
  } else {
    draft.understand(setting, "deterministic kernels aren't asked for");
  }
}

void read_model(const Setting& setting, Draft& draft) { draft.set(fact::kModel, setting.text(), setting); }

}  // namespace vramfit
