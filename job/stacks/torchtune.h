// What torchtune's builders do that a job's notes, its import and its model's code follow from.
#pragma once

#include <span>
#include <string_view>

#include "model_specs/spec.h"

namespace vramfit {

/// One of torchtune's builders that are named after models (0.6.1, torchtune/models/*/_model_builders.py).
struct TorchtuneBuilder {
  std::string_view package, name;  // "llama3_1", "llama3_1_8b"
  std::string_view model;          // its id on the hub
  std::string_view model_type;     // as transformers has it
  std::int64_t vocabulary, layers, hidden, ffn;
  std::int64_t max_seq_len;  // how many positions its tables of rotations have
};

std::span<const TorchtuneBuilder> torchtune_builders();

/// The builder that makes this model: of that id, or else of that shape. Of several (Qwen2.5's have one for the base
/// and one for what is made of it), the one with the longest tables. nullptr: none does.
const TorchtuneBuilder* torchtune_builder_of(const ModelSpec& spec);

}  // namespace vramfit
