#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "executor/sharding/unit_runs_torch.h"
#include "executor/sharding/unit_state_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

at::Tensor kept_part(const at::Tensor& kept, const UnitParameter& p) {
  return kept.narrow(0, p.kept_offset, p.kept_elements);
}

}  // namespace

const Unit& UnitRuns::unit_of(const Operands& operands) const {
  return context_.layout.units[at_index(operands.run().unit)];
}

const UnitParameter& UnitRuns::parameter_of(const Operands& operands) const {
  return unit_of(operands).parameters[at_index(context_.layout.slot_of_parameter[at_index(operands.run().parameter)])];
}

at::Tensor UnitRuns::own_slice(const at::Tensor& gathered, const UnitParameter& p) const {
  return gathered.narrow(0, p.gathered_offset + context_.shard_rank * p.shard_elements, p.shard_elements);
}

at::Tensor UnitRuns::slice_to_keep(const at::Tensor& gathered, const UnitParameter& p) const {
  return gathered.narrow(0, p.gathered_offset + context_.reshard_rank * p.kept_elements, p.kept_elements);
}

void UnitRuns::load_shard(Operands& operands, RowSupply& rows) const {
  const Unit& unit = unit_of(operands);
  for (std::size_t i = 0; i < unit.storages.size(); ++i) operands[i].zero_();
  for (const UnitParameter& p : unit.parameters) {
    const Parameter& parameter = context_.graph.parameters[at_index(p.parameter)];
    rows.fill(parameter, p, UnitState::slice(operands[at_index(p.storage)], p));
  }
}

void UnitRuns::load_states(Operands& operands, StateSource* states) const {
  for (std::size_t i = 0; i < operands.size(); ++i) operands[i].zero_();
  if (states == nullptr) return;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const OptimizerState& state = context_.optimizer.states[i];
    const bool is_count = state.holds == OptimizerState::Holds::updates;
    is_count ? load_count(unit_of(operands), *states, state.name, operands[i])
             : load_elements(unit_of(operands), *states, state.name, operands[i]);
  }
}

void UnitRuns::load_elements(const Unit& unit, StateSource& states, std::string_view name,
                             const at::Tensor& into) const {
  for (const UnitParameter& p : unit.parameters) {
    const std::int64_t first = p.rows_per_rank * context_.shard_rank;
    const std::int64_t rows = std::clamp<std::int64_t>(p.rows - first, 0, p.rows_per_rank);
    if (!p.trainable || rows == 0) continue;
    at::Tensor held = UnitState::slice(into, p).narrow(0, 0, rows * p.row_elements);
    states.read_state(name, context_.graph.parameters[at_index(p.parameter)], first, rows, held);
  }
}

void UnitRuns::load_count(const Unit& unit, StateSource& states, std::string_view name, at::Tensor& into) const {
  bool is_first = true;
  double count = 0;
  for (const UnitParameter& p : unit.parameters) {
    if (!p.trainable) continue;
    states.read_count(name, context_.graph.parameters[at_index(p.parameter)], into);
    const auto own = into.item<double>();
    if (!std::exchange(is_first, false) && own != count) {
      throw InputError(
          fmt::format("--resume: unit {} holds parameters updated {} and {} times; resume with the wrapping "
                      "and freezing that the checkpoint was made with",
                      unit.name, count, own));
    }
    count = own;
  }
}

void UnitRuns::gather_own(Operands& operands) const {
  const Unit& unit = unit_of(operands);
  const at::Tensor& gathered = operands[unit.storages.size()];
  for (const UnitParameter& p : unit.parameters) {
    own_slice(gathered, p).copy_(UnitState::slice(operands[at_index(p.storage)], p));
  }
}

void UnitRuns::gather_kept(Operands& operands) const {
  for (const UnitParameter& p : unit_of(operands).parameters) {
    slice_to_keep(operands[1], p).copy_(kept_part(operands[0], p));
  }
}

void UnitRuns::keep_slice(Operands& operands) const {
  for (const UnitParameter& p : unit_of(operands).parameters) {
    kept_part(operands[1], p).copy_(slice_to_keep(operands[0], p));
  }
}

void UnitRuns::add_whole(Operands& operands) const {
  at::Tensor home = UnitState::slice(operands[1], parameter_of(operands));
  add_into(home, operands[0]);
}

void UnitRuns::add_own(Operands& operands) const {
  const UnitParameter& p = parameter_of(operands);
  at::Tensor home = UnitState::slice(operands[1], p);
  add_into(home, operands[0].narrow(0, context_.shard_rank * p.shard_elements, p.shard_elements));
}

void UnitRuns::update(Operands& operands, OptimizerStep step, const OptimizerOptions& options) const {
  constexpr std::size_t kFirstState = 4;
  at::Tensor trained = operands[0].narrow(0, 0, unit_of(operands).trainable_elements);
  OptimizerCall call{.parameters = trained,
                     .gradients = operands[1],
                     .states = {},
                     .gradient_divisor = operands.has(2) ? &operands[2] : nullptr,
                     .found_inf = operands.has(3) ? &operands[3] : nullptr,
                     .options = options};
  for (std::size_t i = kFirstState; i < operands.size(); ++i) call.states.push_back(operands[i]);
  step(call);
}

void add_unit_runs(ProgramRunner& runner, const UnitRuns& units) {
  using program::Kernel;
  runner.on(Kernel::gather_own, [&](Operands& o) { units.gather_own(o); });
  runner.on(Kernel::gather_kept, [&](Operands& o) { units.gather_kept(o); });
  runner.on(Kernel::keep_slice, [&](Operands& o) { units.keep_slice(o); });
  runner.on(Kernel::copy, [](Operands& o) { o[1].copy_(o[0]); });
  runner.on(Kernel::add, [](Operands& o) { add_into(o[1], o[0]); });
  runner.on(Kernel::add_whole, [&](Operands& o) { units.add_whole(o); });
  runner.on(Kernel::add_own, [&](Operands& o) { units.add_own(o); });
}

}  // namespace vramfit
