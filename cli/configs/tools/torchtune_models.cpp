#include "cli/configs/tools/torchtune_models.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/configs/tools/shared.h"

namespace vramfit {
namespace {

struct Builder {
  std::string_view name, model;
};

// torchtune 0.6.1, torchtune/models/*/_model_builders.py.
constexpr std::array kBuilders{
    Builder{"code_llama2_7b", "codellama/CodeLlama-7b-hf"},
    Builder{"code_llama2_13b", "codellama/CodeLlama-13b-hf"},
    Builder{"gemma2_27b", "google/gemma-2-27b"},
    Builder{"gemma2_2b", "google/gemma-2-2b"},
    Builder{"gemma2_9b", "google/gemma-2-9b"},
    Builder{"gemma_2b", "google/gemma-2b"},
    Builder{"gemma_7b", "google/gemma-7b"},
    Builder{"llama2_13b", "meta-llama/Llama-2-13b-hf"},
    Builder{"llama2_70b", "meta-llama/Llama-2-70b-hf"},
    Builder{"llama2_7b", "meta-llama/Llama-2-7b-hf"},
    Builder{"llama3_1_405b", "meta-llama/Llama-3.1-405B"},
    Builder{"llama3_1_70b", "meta-llama/Llama-3.1-70B"},
    Builder{"llama3_1_8b", "meta-llama/Llama-3.1-8B"},
    Builder{"llama3_2_1b", "meta-llama/Llama-3.2-1B"},
    Builder{"llama3_2_3b", "meta-llama/Llama-3.2-3B"},
    Builder{"llama3_3_70b", "meta-llama/Llama-3.3-70B-Instruct"},
    Builder{"llama3_70b", "meta-llama/Meta-Llama-3-70B"},
    Builder{"llama3_8b", "meta-llama/Meta-Llama-3-8B"},
    Builder{"mistral_7b", "mistralai/Mistral-7B-v0.1"},
    Builder{"phi3_mini", "microsoft/Phi-3-mini-4k-instruct"},
    Builder{"phi4_14b", "microsoft/phi-4"},
    Builder{"qwen2_0_5b", "Qwen/Qwen2-0.5B"},
    Builder{"qwen2_1_5b", "Qwen/Qwen2-1.5B"},
    Builder{"qwen2_7b", "Qwen/Qwen2-7B"},
    Builder{"qwen2_5_0_5b", "Qwen/Qwen2.5-0.5B"},
    Builder{"qwen2_5_14b_instruct", "Qwen/Qwen2.5-14B-Instruct"},
    Builder{"qwen2_5_1_5b_instruct", "Qwen/Qwen2.5-1.5B-Instruct"},
    Builder{"qwen2_5_32b_instruct", "Qwen/Qwen2.5-32B-Instruct"},
    Builder{"qwen2_5_3b", "Qwen/Qwen2.5-3B"},
    Builder{"qwen2_5_72b_instruct", "Qwen/Qwen2.5-72B-Instruct"},
    Builder{"qwen2_5_7b_instruct", "Qwen/Qwen2.5-7B-Instruct"},
    Builder{"qwen3_0_6b_instruct", "Qwen/Qwen3-0.6B"},
    Builder{"qwen3_1_7b_instruct", "Qwen/Qwen3-1.7B"},
    Builder{"qwen3_4b_instruct", "Qwen/Qwen3-4B"},
    Builder{"qwen3_8b_instruct", "Qwen/Qwen3-8B"},
    Builder{"qwen3_14b_instruct", "Qwen/Qwen3-14B"},
    Builder{"qwen3_32b", "Qwen/Qwen3-32B"},
};

constexpr std::array<std::string_view, 3> kMlp{"gate_proj", "up_proj", "down_proj"};

/// Names of modules as transformers has them: its attention's output is o_proj.
std::vector<std::string> targets(const Setting& model) {
  std::vector<std::string> names;
  if (const ConfigNode* attention = find_in(*model.node, "lora_attn_modules")) {
    for (std::string name : Setting{model.file, model.key + ".lora_attn_modules", attention}.texts()) {
      names.push_back(name == "output_proj" ? "o_proj" : std::move(name));
    }
  }
  if (const ConfigNode* mlp = find_in(*model.node, "apply_lora_to_mlp")) {
    if (Setting{model.file, model.key + ".apply_lora_to_mlp", mlp}.flag()) {
      names.insert(names.end(), kMlp.begin(), kMlp.end());
    }
  }
  constexpr std::size_t kAll = 4;
  if (names.size() == kAll + kMlp.size()) return {"all-linear"};
  return names;
}

/// Of torchao's NF4, scales are quantized, too.
void read_lora(const Setting& model, bool is_of_qlora, Draft& draft) {
  draft.set(fact::kLora, "on", model);
  const ConfigNode* base = find_in(*model.node, "quantize_base");
  if (is_of_qlora || (base != nullptr && Setting{model.file, model.key + ".quantize_base", base}.flag())) {
    draft.set(fact::kBits, "4", model);
    draft.set(fact::kNested, "on", model);
  }
  const std::vector<std::string> names = targets(model);
  if (!names.empty()) draft.set("lora_targets", fmt::format("{}", fmt::join(names, ",")), model);
  const auto given = [&](std::string_view key) { return find_in(*model.node, key); };
  if (const ConfigNode* rank = given("lora_rank")) {
    read_count<kLoraRank>({model.file, model.key + ".lora_rank", rank}, draft);
  }
  if (const ConfigNode* alpha = given("lora_alpha")) {
    read_lora_alpha({model.file, model.key + ".lora_alpha", alpha}, draft);
  }
  if (const ConfigNode* dropout = given("lora_dropout")) {
    read_lora_dropout({model.file, model.key + ".lora_dropout", dropout}, draft);
  }
  for (const std::string_view key : {"apply_lora_to_output", "use_dora"}) {
    const ConfigNode* value = given(key);
    const Setting setting{model.file, fmt::format("{}.{}", model.key, key), value};
    if (value != nullptr && !value->is_null() && setting.flag()) {
      draft.not_modelled(setting, key == "use_dora" ? "DoRA" : "an adapter of the output layer");
    }
  }
}

/// The package of a builder is the longest of these that its name begins with.
constexpr std::array<std::string_view, 13> kPackages{"code_llama2", "gemma2",   "gemma",  "llama2",  "llama3_1",
                                                     "llama3_2",    "llama3_3", "llama3", "mistral", "phi3",
                                                     "phi4",        "qwen2_5",  "qwen2"};

}  // namespace

std::string torchtune_builder(std::string_view model) {
  const auto* const builder = std::ranges::find(kBuilders, model, &Builder::model);
  if (builder == kBuilders.end()) return "";
  const auto package = std::ranges::find_if(kPackages, [&](auto name) { return builder->name.starts_with(name); });
  const std::string_view name = package == kPackages.end() ? "qwen3" : *package;
  return fmt::format("torchtune.models.{}.{}", name, builder->name);
}

void read_torchtune_model(const Setting& setting, Draft& draft) {
  const ConfigNode* component = find_in(*setting.node, "_component_");
  std::string name = component == nullptr ? "" : component->text.substr(component->text.rfind('.') + 1);
  const bool is_quantized = name.starts_with("qlora_"), is_lora = is_quantized || name.starts_with("lora_");
  if (is_lora) name.erase(0, name.find('_') + 1);
  const auto* const builder = std::ranges::find(kBuilders, name, &Builder::name);
  if (builder != kBuilders.end()) {
    draft.set(fact::kModel, std::string(builder->model), setting);
  } else {
    draft.ignore(setting, "a builder whose model isn't known here; give MODEL");
  }
  if (is_lora) read_lora(setting, is_quantized, draft);
}

}  // namespace vramfit
