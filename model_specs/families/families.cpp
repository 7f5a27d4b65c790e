#include "model_specs/families/families.h"

#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"

namespace vramfit {

std::span<const Family> families() {
  static const std::array kFamilies{
      bert_family(),        deepseek_v2_family(), deepseek_v3_family(), gemma_family(),     gemma2_family(),
      gemma3_text_family(), gpt2_family(),        gpt_neox_family(),    gpt_oss_family(),   granite_family(),
      llama_family(),       mistral_family(),     mixtral_family(),     opt_family(),       phi3_family(),
      qwen2_family(),       qwen2_moe_family(),   qwen3_family(),       qwen3_moe_family(), t5_family(),
  };
  return kFamilies;
}

const Family& find_family(std::string_view model_type) {
  std::vector<std::string> known;
  for (const Family& family : families()) {
    if (family.model_type == model_type) return family;
    known.emplace_back(family.model_type);
  }
  throw UnknownFamily(fmt::format("model_type \"{}\" isn't a family that is known{}", printable(model_type),
                                  did_you_mean(printable(model_type), known)),
                      printable(model_type));
}

}  // namespace vramfit
