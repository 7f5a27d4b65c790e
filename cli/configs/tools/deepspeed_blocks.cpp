// Blocks of DeepSpeed's configuration: what is offloaded, and its own optimizer.
#include "cli/configs/tools/deepspeed_blocks.h"

#include <array>

namespace vramfit {
namespace {

template <bool Parameters>
void read_offload_device(const Setting& value, Draft& draft) {
  if (value.is_off()) {
    draft.understand(value, "nothing in host memory");
  } else if (!value.is("cpu")) {
    draft.not_modelled(value, "offload to another place than host memory");
  } else if (Parameters || !draft.is("offload", "params")) {
    draft.forget("offload");
    draft.set("offload", Parameters ? "params" : "optimizer", value);
  } else {
    draft.understand(value, "with the parameters");
  }
}

/// Of a part the first sub-groups' states and updates stay on the card (stage3.py: subgroup_to_device).
void read_ratio(const Setting& setting, Draft& draft) {
  if (setting.real() == 1) {
    draft.understand(setting, "all states, as by default");
  } else {
    draft.not_modelled(setting, "states of some sub-groups stay on the GPU; ratio 1, the default, has all on the host");
  }
}

template <bool Parameters>
void read_pinned(const Setting& setting, Draft& draft) {
  if (setting.flag()) return draft.understand(setting, "pinned, as by default");
  draft.set(Parameters ? fact::kPageableParameters : fact::kPageableStates, "on", setting,
            Parameters ? "--offload params:pageable" : "--offload optimizer:pageable");
}

// runtime/zero/offload_config.py
template <bool Parameters>
constexpr std::array kOffloadKeys{
    KeyRow{"device", read_offload_device<Parameters>},
    KeyRow{"pin_memory", read_pinned<Parameters>},
    KeyRow{"ratio", read_ratio},
};
constexpr std::array kOffloadOthers{
    UnmodelledKeys{"another optimizer for weights in host memory, which keeps gradients elsewhere", "super_offload"},
};
constexpr std::array kOffloadIgnored{
    IgnoredKeys{"only for offload to disk; nothing else reads it",
                "nvme_path buffer_count buffer_size max_in_cpu pipeline_read pipeline_write fast_init"},
    IgnoredKeys{"how many processor cores super_offload takes", "cpuadam_cores_perc"},
};
template <bool Parameters>
constexpr KeyTable kOffloadTable{"DeepSpeed's offload", kOffloadKeys<Parameters>, kOffloadOthers, kOffloadIgnored};

/// The block is FusedAdam, or with offload DeepSpeedCPUAdam, of all weights in one group (runtime/engine.py:
/// get_optimizer_configuration).
void read_optimizer_type(const Setting& setting, Draft& draft) {
  if (setting.is("adamw") || setting.is("adam")) {
    draft.set(fact::kOwnOptimizer, "on", setting, "--optimizer adamw:deepspeed");
  } else {
    draft.not_modelled(setting,
                       "another optimizer than DeepSpeed's AdamW with states in fp32; without the block it is the "
                       "Trainer's optim");
  }
}

void read_fp32_states(const Setting& setting, Draft& draft) {
  if (setting.flag()) {
    draft.understand(setting, "states in fp32, as by default");
  } else {
    draft.not_modelled(setting, "another optimizer than DeepSpeed's AdamW with states in fp32");
  }
}

constexpr std::array kOptimizerNumbers{KeyRow{"fp32_optimizer_states", read_fp32_states}};
constexpr std::array kOptimizerOthers{
    UnmodelledKeys{"another optimizer than DeepSpeed's AdamW with states in fp32", "torch_adam amsgrad"},
};
constexpr std::array kOptimizerIgnored{IgnoredKeys{
    "no memory depends on it", "lr betas eps weight_decay bias_correction adam_w_mode max_grad_norm adamw_mode"}};
constexpr KeyTable kOptimizerNumbersTable{"DeepSpeed's AdamW", kOptimizerNumbers, kOptimizerOthers, kOptimizerIgnored};

void read_optimizer_numbers(const Setting& setting, Draft& draft) { read_keys(setting, kOptimizerNumbersTable, draft); }

constexpr std::array kOptimizerKeys{KeyRow{"type", read_optimizer_type}, KeyRow{"params", read_optimizer_numbers}};
constexpr std::array kOptimizerUnmodelled{
    UnmodelledKeys{"another way to update than DeepSpeed's usual one", "legacy_fusion"}};
constexpr KeyTable kOptimizerTable{"DeepSpeed's optimizer", kOptimizerKeys, kOptimizerUnmodelled, {}};

}  // namespace

void read_what_is_on(const Setting& setting, Draft& draft) {
  if (setting.is_off()) {
    draft.not_modelled(setting, "on by default; without it gradients are stored, sent or checked differently");
  } else {
    draft.understand(setting, "on, as by default");
  }
}

template <bool Parameters>
void read_deepspeed_offload(const Setting& setting, Draft& draft) {
  const ConfigNode* device = find_in(*setting.node, "device");
  if (device == nullptr || Setting{setting.file, setting.key, device}.is_off()) {
    draft.ignore(setting, "no device is given");
  } else {
    read_keys(setting, kOffloadTable<Parameters>, draft);
  }
}

template void read_deepspeed_offload<false>(const Setting& setting, Draft& draft);
template void read_deepspeed_offload<true>(const Setting& setting, Draft& draft);

void read_deepspeed_optimizer(const Setting& setting, Draft& draft) {
  if (find_in(*setting.node, "type") == nullptr) {
    draft.ignore(setting, "no type is given");
  } else {
    read_keys(setting, kOptimizerTable, draft);
  }
}

}  // namespace vramfit
