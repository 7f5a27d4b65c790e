// adapter_config.json, as PEFT 0.21 reads and writes it (peft/config.py; peft/tuners/lora/config.py, class LoraConfig).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// What a configuration says of its adapters.
struct PeftConfig {
  Lora lora;  // without targets
  /// target_modules, if the modules with adapters are all those whose names end in one of them; none: the file of
  /// weights alone says which they are, because the configuration has a regular expression or exceptions.
  std::vector<std::string> targets;
  bool all_linear = false;      // target_modules is "all-linear"
  bool fan_in_fan_out = false;  // weights are stored as (inputs, outputs)
};

inline constexpr std::string_view kPeftConfigFile = "adapter_config.json";
inline constexpr std::string_view kPeftWeightsFile = "adapter_model.safetensors";
inline constexpr std::int64_t kLongestPeftConfig = std::int64_t{1} << 20;  // of its file, in bytes
inline constexpr std::string_view kPeftPrefix = "base_model.model.";       // of all names of tensors

/// Throws InputError "FILE: KEY: ..." for text that isn't such a configuration, for values out of range, and for
/// everything that changes what adapters compute and isn't supported here (DoRA, a rank per module, trained biases,
/// whole modules ...), with what answers instead.
PeftConfig peft_config_from_json(std::string_view text, const std::string& file);

/// The configuration of a resolved job's adapters. `base`: the path or hub id of the model that they belong to; "" if
/// there is none.
std::string peft_config_to_json(const Graph& graph, const Job& job, const std::string& base);

/// The ends of names that mean the linears with adapters and no other module: "q_proj", or "layers.0.self_attn.q_proj"
/// in full where another module without an adapter ends alike. Sorted.
std::vector<std::string> peft_targets(const Graph& graph);

}  // namespace vramfit
