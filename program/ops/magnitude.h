// What the rule of a magnitude and its kernels share.
#pragma once

#include <cstdint>

#include "program/ops/rule.h"

namespace vramfit {

/// Whether the output takes over the input's storage; backward then reads it instead of the input.
bool scales_in_place(const OpContext& context);

/// Of `tokens` with `width` outputs each: those whose part of the magnitudes' gradient CUDA sums at a time, in fp32.
std::int64_t summed_tokens(std::int64_t tokens, std::int64_t width);

}  // namespace vramfit
