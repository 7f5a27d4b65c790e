#include "planner/cost/training_cost.h"

#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"

namespace vramfit {

std::int64_t parse_tokens(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 8> kUnits{
      {{"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"m", 1e6}, {"B", 1e9}, {"b", 1e9}, {"T", 1e12}, {"t", 1e12}}};
  constexpr double kMostTokens = 1e18;
  try {
    std::string_view number = text;
    double unit = 1;
    for (const auto& [name, size] : kUnits) {
      if (!text.ends_with(name)) continue;
      unit = size;
      number.remove_suffix(name.size());
      break;
    }
    const std::int64_t tokens = std::llround(unit * real_number(number, 0, kMostTokens / unit));
    if (tokens < 1) throw InputError("at least one token");
    return tokens;
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("--tokens {}: {}; expected a count such as 15B, 300M or 1.5T", printable(text), error.what()));
  }
}

TrainingCost training_cost(std::int64_t tokens, double tokens_per_second, std::int64_t gpus,
                           const std::optional<Price>& price) {
  constexpr double kSecondsPerHour = 3600;
  TrainingCost cost;
  cost.hours = static_cast<double>(tokens) / tokens_per_second / kSecondsPerHour;
  cost.gpu_hours = cost.hours * static_cast<double>(gpus);
  if (price) cost.money = cost.gpu_hours * price->per_gpu_hour;
  return cost;
}

}  // namespace vramfit
