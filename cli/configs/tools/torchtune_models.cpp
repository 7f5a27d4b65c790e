#include "cli/configs/tools/torchtune_models.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/configs/tools/shared.h"

namespace vramfit {
namespace {

// Builders of later releases, whose models have no rules here.
struct LaterBuilder {
  std::string_view name, model;
};
constexpr std::array kLater{
    LaterBuilder{"qwen3_0_6b_instruct", "Qwen/Qwen3-0.6B"}, LaterBuilder{"qwen3_1_7b_instruct", "Qwen/Qwen3-1.7B"},
    LaterBuilder{"qwen3_4b_instruct", "Qwen/Qwen3-4B"},     LaterBuilder{"qwen3_8b_instruct", "Qwen/Qwen3-8B"},
    LaterBuilder{"qwen3_14b_instruct", "Qwen/Qwen3-14B"},   LaterBuilder{"qwen3_32b", "Qwen/Qwen3-32B"},
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
  if (const ConfigNode* magnitudes = given("use_dora"); magnitudes != nullptr && !magnitudes->is_null()) {
    read_dora({model.file, model.key + ".use_dora", magnitudes}, draft);
  }
}

constexpr std::array kBuilderParts{
    KeyRow{"_component_", read_part},   KeyRow{"lora_attn_modules", read_part}, KeyRow{"apply_lora_to_mlp", read_part},
    KeyRow{"quantize_base", read_part}, KeyRow{"lora_rank", read_part},         KeyRow{"lora_alpha", read_part},
    KeyRow{"lora_dropout", read_part},  KeyRow{"use_dora", read_part},          KeyRow{"max_seq_len", read_part},
};
constexpr std::array kBuilderOthers{
    UnmodelledKeys{"an adapter of the output layer", "apply_lora_to_output"},
    UnmodelledKeys{"a model of images and text, of which parts are trained",
                   "decoder_trainable encoder_trainable fusion_trainable image_size"},
    UnmodelledKeys{"another way to quantize", "quantization_kwargs scaler_block_size block_size"},
};
constexpr KeyTable kBuilderTable{"torchtune's builders", kBuilderParts, kBuilderOthers, {}};

}  // namespace

const TorchtuneBuilder* torchtune_builder_named(std::string_view model, std::int64_t max_seq_len) {
  const TorchtuneBuilder* found = nullptr;
  for (const TorchtuneBuilder& builder : torchtune_builders()) {
    const bool is_of_model = builder.model == model || builder.model == fmt::format("{}-Instruct", model);
    if (is_of_model && (found == nullptr || builder.max_seq_len == max_seq_len)) found = &builder;
  }
  return found;
}

void read_torchtune_model(const Setting& setting, Draft& draft) {
  const ConfigNode* component = find_in(*setting.node, "_component_");
  std::string name = component == nullptr ? "" : component->text.substr(component->text.rfind('.') + 1);
  const bool is_quantized = name.starts_with("qlora_"), is_lora = is_quantized || name.starts_with("lora_");
  if (is_lora) name.erase(0, name.find('_') + 1);
  const auto builder = std::ranges::find(torchtune_builders(), name, &TorchtuneBuilder::name);
  const auto* const later = std::ranges::find(kLater, name, &LaterBuilder::name);
  if (builder != torchtune_builders().end()) {
    draft.set(fact::kModel, std::string(builder->model), setting);
    draft.set(kRotaryPositions, fmt::to_string(builder->max_seq_len), setting);
  } else if (later != kLater.end()) {
    draft.set(fact::kModel, std::string(later->model), setting);
  } else {
    draft.ignore(setting, "a builder whose model isn't known here; give MODEL");
  }
  if (const ConfigNode* positions = find_in(*setting.node, "max_seq_len")) {  // of a builder that isn't a model's own
    read_count<kRotaryPositions>({setting.file, setting.key + ".max_seq_len", positions}, draft);
  }
  if (is_lora) read_lora(setting, is_quantized, draft);
  read_keys(setting, kBuilderTable, draft);
}

}  // namespace vramfit
