// What it takes to train on a number of tokens: time, GPU hours, and money.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "planner/cost/prices.h"

namespace vramfit {

/// `--tokens`: "15B", "300M", "1.5T", "20k", or a whole number. Throws InputError.
std::int64_t parse_tokens(std::string_view text);

struct TrainingCost {
  double hours = 0, gpu_hours = 0;
  std::optional<double> money;  // gpu_hours at the price
};

/// `tokens_per_second` is that of the whole job, and above 0.
TrainingCost training_cost(std::int64_t tokens, double tokens_per_second, std::int64_t gpus,
                           const std::optional<Price>& price);

}  // namespace vramfit
