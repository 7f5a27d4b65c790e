// What torchtune's builders do that both a job's notes and its model's code follow from.
#pragma once

#include "model_specs/spec.h"

namespace vramfit {

/// Whether a builder with adapters makes a table of rotations for each layer, as all but those of Llama 3.1 to 3.3 do
/// (torchtune/models/*/_component_builders.py). `is_tied`: the head is the embedding, which of Llama's only 3.2 has.
inline bool rotates_each_layer(bool is_qwen, Rope::Scaling scaling, bool is_tied) {
  return is_qwen || (scaling != Rope::Scaling::llama3 && !is_tied);
}

}  // namespace vramfit
