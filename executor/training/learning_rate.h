// Linear warmup, then half a cosine down to zero.
#pragma once

#include <cstdint>

namespace vramfit {

/// The learning rate of step `step` (1 .. steps): peak * step / warmup while step <= warmup, then
/// peak * (1 + cos(pi * (step - 1 - warmup) / (steps - warmup))) / 2, which is `peak` right after the warmup.
double learning_rate_at(double peak, std::int64_t step, std::int64_t warmup, std::int64_t steps);

}  // namespace vramfit
