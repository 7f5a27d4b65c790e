// The models that torchtune's builders make, by their names on the hub.
#pragma once

#include <string_view>

#include "cli/configs/draft.h"
#include "job/stacks/torchtune.h"

namespace vramfit {

/// model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 8, ...}.
void read_torchtune_model(const Setting& setting, Draft& draft);

/// Of a model's name on the hub; nullptr without one. Of two, the one with tables for `max_seq_len`, if any.
const TorchtuneBuilder* torchtune_builder_named(std::string_view model, std::int64_t max_seq_len);

}  // namespace vramfit
