#include "program/optimizers/optimizers.h"

#include <algorithm>
#include <array>

#include "job/optimizers.h"

namespace vramfit {

namespace {

constexpr std::array kOptimizers{
#define OPTIMIZER(name, ...) &optimizers::name,
#include "job/optimizers.def"
#undef OPTIMIZER
};

}  // namespace

std::int64_t numbers_of(const OptimizerState& state, std::int64_t elements) {
  return state.holds == OptimizerState::Holds::updates ? 1 : ceil_div(elements, state.covers);
}

std::int64_t elements_of(const OptimizerState& state, const Unit& unit) {
  return numbers_of(state, unit.trainable_elements);
}

Dtype dtype_of(const OptimizerState& state, const Precision& precision) {
  if (state.holds == OptimizerState::Holds::updates) return Dtype::f32;
  return state.dtype.value_or(precision.state);
}

const Optimizer& optimizer_named(std::string_view name) { return *kOptimizers.at(optimizer_number(name)); }

bool has_optimizer(const Job& job) {
  const Optimizer& row = optimizer_named(job.optimizer);
  const auto known = job.runtime == Runtime::vramfit ? row.implementations : row.pytorch;
  return std::ranges::find(known, job.optimizer_implementation) != known.end();
}

}  // namespace vramfit
