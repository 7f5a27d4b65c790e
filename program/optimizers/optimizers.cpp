#include "program/optimizers/optimizers.h"

#include <algorithm>
#include <array>

#include "job/optimizers/optimizers.h"

namespace vramfit {

namespace {

constexpr std::array kOptimizers{
#define OPTIMIZER(name, ...) &optimizers::name,
#include "job/optimizers/optimizers.def"
#undef OPTIMIZER
};

}  // namespace

std::int64_t numbers_of(const OptimizerState& state, std::int64_t elements) {
  return state.holds == OptimizerState::Holds::updates ? 1 : ceil_div(elements, state.covers);
}

namespace {

/// Of a state by parameter. A matrix with one column is as well described as a vector.
std::int64_t numbers_of(const OptimizerState& state, const UnitParameter& p, std::int64_t rows) {
  using Holds = OptimizerState::Holds;
  const bool is_matrix = p.row_elements > 1;
  if (state.holds == Holds::parameters) return rows > 0 ? 1 : 0;
  if (state.holds == Holds::columns) return is_matrix ? p.row_elements : 0;
  return is_matrix == (state.holds == Holds::rows) ? rows : 0;
}

}  // namespace

bool is_by_parameter(const OptimizerState& state) {
  return state.holds != OptimizerState::Holds::elements && state.holds != OptimizerState::Holds::updates;
}

std::int64_t elements_of(const OptimizerState& state, const Unit& unit) {
  if (!is_by_parameter(state)) return numbers_of(state, unit.trainable_elements);
  std::int64_t sum = 0;
  for (const UnitParameter& p : unit.parameters) {
    if (p.trainable) sum = checked_add(sum, numbers_of(state, p, p.rows_per_rank));
  }
  return sum;
}

StatePart part_of(const OptimizerState& state, const Unit& unit, std::size_t slot, std::int64_t rows) {
  const UnitParameter& p = unit.parameters[slot];
  if (state.holds == OptimizerState::Holds::updates) return {0, 1};
  if (!is_by_parameter(state))
    return {p.shard_offset / state.covers, numbers_of(state, checked_mul(rows, p.row_elements))};
  StatePart part{0, numbers_of(state, p, rows)};
  for (std::size_t before = 0; before < slot; ++before) {
    const UnitParameter& other = unit.parameters[before];
    if (other.trainable) part.begin += numbers_of(state, other, other.rows_per_rank);
  }
  return part;
}

StatePart saved_part_of(const OptimizerState& state, const Unit& unit, std::size_t slot, std::int64_t first_row,
                        std::int64_t rows) {
  using Holds = OptimizerState::Holds;
  const bool is_everywhere = state.holds == Holds::updates || state.holds == Holds::columns;
  if (rows == 0 || (is_everywhere && first_row > 0)) return {};
  return part_of(state, unit, slot, rows);
}

UnitUpdate update_of(const Unit& unit, const Precision& precision, const Updating& by) {
  UnitUpdate update{.elements = unit.trainable_elements,
                    .storage = unit.trained,
                    .gradient = unit.gradient,
                    .state = precision.state,
                    .device = by.device,
                    .parameters = 0,
                    .kernels = by.kernels,
                    .form = by.form};
  for (const UnitParameter& p : unit.parameters) {
    if (!p.trainable) continue;
    ++update.parameters;
    update.longest_row = std::max(update.longest_row, p.row_elements);
  }
  return update;
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
