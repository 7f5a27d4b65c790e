// Rotary tables: cos and sin of position times frequency, in fp32, as the reference implementations compute them.
#pragma once

#include <cstdint>
#include <vector>

#include "model_specs/spec.h"

namespace vramfit {

/// Frequencies of `dims` rotated dims (dims/2 of them): theta^(-2i/dims), scaled as `rope.scaling` says.
/// Source of llama3's formula: Llama 3.1's reference code (apply_scaling), also in transformers' rope utilities.
std::vector<float> rope_frequencies(const Rope& rope, std::int64_t dims);

/// Row-major [sequence, frequencies.size()].
void fill_rope_table(const std::vector<float>& frequencies, std::int64_t sequence, float* cos, float* sin);

}  // namespace vramfit
