#include "executor/optimizers/optimizers.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "executor/optimizers/adamw.h"

namespace vramfit {

namespace {

constexpr std::array kOptimizerFunctions{OptimizerFunctions{"adamw", fused_adamw}};

}  // namespace

const OptimizerFunctions& optimizer_functions(std::string_view name, DeviceKind) {
  const auto* const row = std::ranges::find(kOptimizerFunctions, name, &OptimizerFunctions::name);
  if (row != kOptimizerFunctions.end()) return *row;
  std::vector<std::string> names;
  names.reserve(kOptimizerFunctions.size());
  for (const OptimizerFunctions& functions : kOptimizerFunctions) names.emplace_back(functions.name);
  throw InputError("optimizer \"" + std::string(name) + "\": unknown" + did_you_mean(name, names));
}

}  // namespace vramfit
