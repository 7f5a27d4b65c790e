// The table of model families: one file and one row each. No other code knows a family's name.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "model_specs/config.h"
#include "model_specs/graph.h"
#include "model_specs/parameters.h"

namespace vramfit {

struct Family {
  std::string_view model_type;
  /// The transformers classes that `parameters` knows. The first is the default if config.json names none; the second
  /// is the class without a head (AutoModel's).
  std::vector<std::string_view> classes;
  /// Fills `spec` from the keys of the (text) configuration, with the defaults of the family's configuration class.
  void (*parse)(ConfigReader& config, ModelSpec& spec);
  std::vector<NamedShape> (*parameters)(const ModelSpec& spec);
  std::vector<NamedBuffer> (*buffers)(const ModelSpec& spec);
  Graph (*graph)(const ModelSpec& spec, const LossOptions& loss);  // nullptr: counted only
  /// Modules of the class without a head that transformers' _no_split_modules names besides the numbered layers.
  std::vector<std::string_view> unsplit_modules = {};
};

std::span<const Family> families();

/// Throws ModelError with a suggestion for an unknown model_type.
const Family& find_family(std::string_view model_type);

Family bert_family();
Family deepseek_v2_family();
Family deepseek_v3_family();
Family gemma_family();
Family gemma2_family();
Family gemma3_text_family();
Family gpt2_family();
Family gpt_neox_family();
Family gpt_oss_family();
Family granite_family();
Family llama_family();
Family mistral_family();
Family mixtral_family();
Family opt_family();
Family phi3_family();
Family qwen2_family();
Family qwen2_moe_family();
Family qwen3_family();
Family qwen3_moe_family();
Family t5_family();

}  // namespace vramfit
