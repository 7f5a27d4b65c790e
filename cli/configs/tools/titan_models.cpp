#include "cli/configs/tools/titan_models.h"

#include <algorithm>
#include <array>

namespace vramfit {
namespace {

constexpr std::array kModels{
    TitanModel{"llama3", "8B", "meta-llama/Llama-3.1-8B"},
    TitanModel{"llama3", "70B", "meta-llama/Llama-3.1-70B"},
    TitanModel{"llama3", "405B", "meta-llama/Llama-3.1-405B"},
    TitanModel{"llama2", "7B", "meta-llama/Llama-2-7b-hf"},
    TitanModel{"llama2", "13B", "meta-llama/Llama-2-13b-hf"},
    TitanModel{"llama2", "70B", "meta-llama/Llama-2-70b-hf"},
    TitanModel{"qwen3", "0.6B", "Qwen/Qwen3-0.6B"},
    TitanModel{"qwen3", "1.7B", "Qwen/Qwen3-1.7B"},
    TitanModel{"qwen3", "4B", "Qwen/Qwen3-4B"},
    TitanModel{"qwen3", "8B", "Qwen/Qwen3-8B"},
    TitanModel{"qwen3", "14B", "Qwen/Qwen3-14B"},
    TitanModel{"qwen3", "32B", "Qwen/Qwen3-32B"},
};

}  // namespace

const TitanModel* titan_model(std::string_view model) {
  const auto* const found = std::ranges::find(kModels, model, &TitanModel::model);
  return found == kModels.end() ? nullptr : found;
}

const TitanModel* titan_flavor(std::string_view name, std::string_view flavor) {
  const auto* const found =
      std::ranges::find_if(kModels, [&](const TitanModel& row) { return row.name == name && row.flavor == flavor; });
  return found == kModels.end() ? nullptr : found;
}

}  // namespace vramfit
