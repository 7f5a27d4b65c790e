// accelerate 1.15, utils/dataclasses.py, FullyShardedDataParallelPlugin; the same keys in transformers' fsdp_config and
// in axolotl's.
#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/configs/tools/shared.h"
#include "job/sharding/fsdp_strategies.h"

namespace vramfit {
namespace {

/// FULL_SHARD by its name, or by its place in torch's list, from 1.
void read_strategy(const Setting& setting, Draft& draft) {
  for (std::size_t i = 0; i < kFsdpStrategies.size(); ++i) {
    std::string theirs(kFsdpStrategies[i]);
    std::ranges::replace(theirs, '-', '_');
    if (!setting.is(theirs) && !setting.is(fmt::to_string(i + 1))) continue;
    draft.set(fact::kFsdpStrategy, std::string(kFsdpStrategies[i]), setting);
    return;
  }
  setting.fail(fmt::format("{} is no strategy of FSDP", shown(*setting.node)));
}

/// true and false with FSDP2, a strategy with FSDP1.
void read_reshard(const Setting& setting, Draft& draft) {
  if (setting.is("true") || setting.is("false")) {
    draft.set(fact::kFsdpStrategy, setting.flag() ? "full-shard" : "shard-grad-op", setting);
  } else {
    read_strategy(setting, draft);
    if (!setting.is("1")) draft.derive(fact::kStrategyOfFsdp1, "on");  // with FSDP2 that is true
  }
}

void read_wrap(const Setting& setting, Draft& draft) {
  if (setting.is("transformer_based_wrap")) {
    draft.set("wrap", "layer", setting);
  } else if (setting.is("no_wrap")) {
    draft.set("wrap", "none", setting);
  } else if (setting.is("size_based_wrap")) {
    draft.understand(setting, "--wrap size:N, with the least number of parameters");
    draft.assume(fact::kMinimum, "100000000", "accelerate's least number of parameters of a unit");
  } else {
    setting.fail(fmt::format("{} is no policy of accelerate", shown(*setting.node)));
  }
}

void read_minimum(const Setting& setting, Draft& draft) {
  if (setting.whole() == 0) {
    draft.understand(setting, "no limit by size");
    return;
  }
  draft.forget(fact::kMinimum);
  draft.set(fact::kMinimum, fmt::to_string(setting.whole(1)), setting);
}

void read_offload(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.set("offload", "params", setting);
  } else {
    draft.understand(setting, "nothing in host memory");
  }
}

void read_fsdp_checkpointing(const Setting& setting, Draft& draft) {
  const bool is_on = setting.flag();
  draft.set(fact::kFsdpCheckpointing, is_on ? "on" : "off", setting, is_on ? "--checkpointing full" : "none by FSDP");
}

void read_efficient_loading(const Setting& setting, Draft& draft) {
  draft.set(fact::kEfficientLoading, setting.flag() ? "on" : "off", setting, "in which order weights are loaded");
}

std::string path_of(const Setting& map, std::string_view key) {
  return map.key.empty() ? std::string(key) : fmt::format("{}.{}", map.key, key);
}

constexpr std::string_view kOfFsdp1 = "a choice that only FSDP1 has";

/// BACKWARD_PRE by its name, or by its place in accelerate's list, from 1.
void read_backward_prefetch(const Setting& setting, Draft& draft) {
  struct Prefetch {
    std::string_view theirs, number, ours;
  };
  constexpr std::array kPrefetches{Prefetch{"backward_pre", "1", "pre"}, Prefetch{"backward_post", "2", "post"},
                                   Prefetch{"no_prefetch", "3", "none"}};
  for (const Prefetch& prefetch : kPrefetches) {
    if (!setting.is(prefetch.theirs) && !setting.is(prefetch.number) &&
        !(prefetch.ours == "none" && setting.is_off())) {
      continue;
    }
    draft.set(fact::kBackwardPrefetch, std::string(prefetch.ours), setting, std::string(kOfFsdp1));
    return;
  }
  setting.fail(fmt::format("{} is no prefetch of FSDP", shown(*setting.node)));
}

template <const std::string_view& Fact>
void read_of_fsdp1(const Setting& setting, Draft& draft) {
  draft.set(Fact, setting.flag() ? "on" : "off", setting, std::string(kOfFsdp1));
}

constexpr std::array kKeys{
    KeyRow{"version", read_fsdp_version},
    KeyRow{"sharding_strategy", read_strategy},
    KeyRow{"reshard_after_forward", read_reshard},
    KeyRow{"auto_wrap_policy", read_wrap},
    KeyRow{"min_num_params", read_minimum},
    KeyRow{"offload_params", read_offload},
    KeyRow{"cpu_offload", read_offload},
    KeyRow{"activation_checkpointing", read_fsdp_checkpointing},
    KeyRow{"cpu_ram_efficient_loading", read_efficient_loading},
    KeyRow{"backward_prefetch", read_backward_prefetch},
    KeyRow{"forward_prefetch", read_of_fsdp1<fact::kForwardPrefetch>},
    KeyRow{"use_orig_params", read_of_fsdp1<fact::kOriginalParameters>},
    KeyRow{"limit_all_gathers", read_of_fsdp1<fact::kLimitsGathers>},
};
constexpr std::array kOthers{
    UnmodelledKeys{"modules that FSDP leaves whole", "ignored_modules ignored_parameters"},
    UnmodelledKeys{"FSDP's own mixed-precision policy", "mixed_precision_policy"},
    UnmodelledKeys{"activations in host memory", "activation_checkpointing_offload"},
    UnmodelledKeys{"PyTorch/XLA", "xla xla_fsdp_v2 xla_fsdp_grad_ckpt xla_fsdp_settings"},
    UnmodelledKeys{"parameters are made on the device", "param_init_fn"},
};
constexpr std::array kIgnored{
    IgnoredKeys{"which layers a policy for layers wraps",
                "transformer_layer_cls_to_wrap transformer_cls_names_to_wrap"},
    IgnoredKeys{"affects only loading and saving",
                "state_dict_type sync_module_states final_state_dict_type state_dict_config "
                "optim_state_dict_config"},
    IgnoredKeys{"pinned or not, it is host memory", "cpu_offload_pin_memory"},
};
constexpr KeyTable kTable{"FSDP", kKeys, kOthers, kIgnored, "fsdp_"};

}  // namespace

/// accelerate 1.15, utils/dataclasses.py: FullyShardedDataParallelPlugin.__post_init__.
void require_switch_of_fsdp2(const Draft& draft) {
  if (!draft.is(fact::kStrategyOfFsdp1, "on") || !draft.is(fact::kFsdpVersion, "2")) return;
  const Draft::Value& value = draft.values().find(fact::kFsdpStrategy)->second;
  throw InputError(fmt::format(
      "{}:{}: {} is a strategy of FSDP1, and accelerate takes only true or false with FSDP2: true is FULL_SHARD, false "
      "is SHARD_GRAD_OP",
      printable(value.file, 300), value.line, printable(value.key)));
}

void read_fsdp_version(const Setting& setting, Draft& draft) {
  draft.set(fact::kFsdpVersion, fmt::to_string(setting.whole(1, 2)), setting);
}

void read_fsdp(const Setting& setting, int version, Draft& draft) {
  if (!setting.node->is_map()) setting.fail(fmt::format("{} is not a map", shown(*setting.node)));
  ConfigNode map = *setting.node;
  // What is left empty, as generated files and unset variables have it, isn't given.
  for (std::size_t i = 0; i < map.keys.size(); ++i) {
    ConfigNode& item = map.items[i];
    if (item.kind != ConfigNode::Kind::text || !item.text.empty()) continue;
    draft.ignore({setting.file, path_of(setting, map.keys[i]), &item}, "left empty, as if it weren't there");
    item.kind = ConfigNode::Kind::null;
  }
  read_keys({setting.file, setting.key, &map}, kTable, draft);
  // transformers/training_args.py: _process_fsdp_args, whose FSDP1 has other defaults than accelerate's launcher.
  if (version == 2 && draft.is(fact::kFsdpVersion, "1"))
    draft.assume(fact::kOriginalParameters, "on", "transformers' default with FSDP1");
  if (!map.keys.empty()) draft.assume(fact::kFsdpVersion, fmt::to_string(version), "what is meant if none is given");
}

}  // namespace vramfit
