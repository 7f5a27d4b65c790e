// The models that torchtune's builders make, by their names on the hub.
#pragma once

#include "cli/configs/draft.h"

namespace vramfit {

/// model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 8, ...}.
void read_torchtune_model(const Setting& setting, Draft& draft);

/// "torchtune.models.llama3_1.llama3_1_8b" for a model's name on the hub; "" without one.
std::string torchtune_builder(std::string_view model);

}  // namespace vramfit
