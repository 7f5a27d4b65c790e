#include "executor/training/learning_rate.h"

#include <cmath>
#include <numbers>

namespace vramfit {

double learning_rate_at(double peak, std::int64_t step, std::int64_t warmup, std::int64_t steps) {
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  const auto done = static_cast<double>(step - 1 - warmup), all = static_cast<double>(steps - warmup);
  return peak * 0.5 * (1.0 + std::cos(std::numbers::pi * done / all));
}

}  // namespace vramfit
