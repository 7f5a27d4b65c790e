#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "executor/meter/meter.h"
#include "executor/sharding/unit_runs_torch.h"
#include "executor/sharding/unit_state_torch.h"
#include "executor/training/counter_random.h"
#include "executor/training/scaled_masters_torch.h"
#include "executor/training/tensor_torch.h"
#include "program/stages/offload.h"

namespace vramfit {

const Unit& UnitRuns::unit_of(const Operands& operands) const {
  return context_.layout.units[at_index(operands.run().unit)];
}

void UnitRuns::load_shard(Operands& operands, RowSupply& rows) const {
  const Unit& unit = unit_of(operands);
  std::vector<std::size_t> parts(unit.storages.size());  // filled so far
  std::int64_t scales = 0;
  for (const UnitParameter& p : unit.parameters) {
    const Parameter& parameter = context_.graph.parameters[at_index(p.parameter)];
    const std::size_t storage = at_index(p.storage);
    const at::Tensor slice = operands.part(storage, parts[storage]++);
    p.is_scaled ? rows.fill_scaled(parameter, p, {slice, operands[unit.storages.size()].narrow(0, scales++, 1)})
                : rows.fill(parameter, p, slice);
  }
}

void UnitRuns::load_states(Operands& operands, StateSource* states) const {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands.has(i)) operands[i].zero_();
  }
  if (states == nullptr) return;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands.has(i)) continue;
    const OptimizerState& state = context_.optimizer.states[i];
    const bool is_count = state.holds == OptimizerState::Holds::updates;
    is_count ? load_count(unit_of(operands), *states, state.name, operands[i])
             : load_parts(unit_of(operands), *states, state, operands[i]);
  }
}

void UnitRuns::load_parts(const Unit& unit, StateSource& states, const OptimizerState& state,
                          const at::Tensor& into) const {
  using Holds = OptimizerState::Holds;
  for (std::size_t slot = 0; slot < unit.parameters.size(); ++slot) {
    const UnitParameter& p = unit.parameters[slot];
    const std::int64_t first = p.rows_per_rank * context_.shard_rank;
    const std::int64_t rows = std::clamp<std::int64_t>(p.rows - first, 0, p.rows_per_rank);
    const StatePart part = p.trainable ? part_of(state, unit, slot, rows) : StatePart{};
    const bool is_by_columns = state.holds == Holds::columns;
    if (part.numbers == 0 || (rows == 0 && !is_by_columns)) continue;
    const Parameter& parameter = context_.graph.parameters[at_index(p.parameter)];
    at::Tensor held = into.narrow(0, part.begin, part.numbers);
    if (state.holds != Holds::elements && state.holds != Holds::parameters) {
      const StateRows own{.first = first, .count = rows}, columns{.each = part.numbers};
      states.read_numbers(state.name, parameter, is_by_columns ? columns : own, held);
    } else if (context_.optimizer.block > 1) {
      states.read_blocks(state.name, parameter, first, rows, held);
    } else {
      states.read_state(state.name, parameter, first, rows, held);
    }
  }
}

void UnitRuns::load_count(const Unit& unit, StateSource& states, std::string_view name, at::Tensor& into) const {
  bool is_first = true;
  double count = 0;
  for (const UnitParameter& p : unit.parameters) {
    if (!p.trainable) continue;
    states.read_numbers(name, context_.graph.parameters[at_index(p.parameter)], {}, into);
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
  const std::size_t codes = unit.codes_bytes > 0 ? 1 : 0;  // of what is trained, before the storages
  const std::size_t scales = codes + unit.storages.size(), whole = scales + (unit.scales > 0 ? 1 : 0);
  const std::size_t scratch = whole + 1;
  std::size_t next = 0;
  for (std::size_t operand = 0; operand < scales; ++operand) {
    std::size_t part = 0;
    for (const UnitParameter& p : unit.parameters) {
      if ((p.trained_as != nullptr ? 0 : codes + at_index(p.storage)) != operand) continue;
      const at::Tensor from = operands.part(operand, part++);
      at::Tensor to = operands.part(whole, next++);
      if (p.is_scaled) {  // the first parameters, in the order of their scales
        scaled_numbers({from, operands[scales].narrow(0, static_cast<std::int64_t>(part) - 1, 1)}, to,
                       context_.kernels);
        continue;
      }
      if (codes_format(p) == nullptr) {
        to.copy_(from);
        continue;
      }
      const QuantizedRows matrix = quantized_rows(p, context_.shard_rank);
      if (scratch < operands.size()) {
        dequantize_by_calls(matrix, from, to, operands[scratch]);
      } else {
        to.is_cpu() ? dequantize_on_cpu(matrix, from, to) : dequantize_by_kernel(matrix, from, to);
      }
    }
  }
}

void UnitRuns::encode(Operands& operands) const {
  std::size_t part = 0;
  for (const UnitParameter& p : unit_of(operands).parameters) {
    if (p.trained_as == nullptr) continue;
    const at::Tensor masters = operands.part(0, part);
    at::Tensor codes = operands.part(1, part++);
    encode_rows(quantized_rows(p, context_.shard_rank), masters, codes);
  }
}

std::vector<RandomStretch> UnitRuns::stretches_of(const Unit& unit, const StepOfUpdate& step) const {
  constexpr std::uint64_t kRoundingStreams = 0x726F756EU;  // "roun": not the streams of weights and masks
  std::vector<RandomStretch> stretches;
  for (const UnitParameter& p : unit.parameters) {
    if (!p.trainable) continue;
    const std::string& name = context_.graph.parameters[at_index(p.parameter)].name;
    const std::uint64_t stream = stream_key(mix_bits(step.seed ^ kRoundingStreams), name);
    stretches.push_back({.offset = p.shard_offset,
                         .elements = p.shard_elements,
                         .first = context_.shard_rank * p.shard_elements,
                         .key = random_word(stream, static_cast<std::uint64_t>(step.step))});
  }
  return stretches;
}

std::vector<ParameterRows> UnitRuns::rows_of(const Unit& unit) const {
  std::vector<ParameterRows> list;
  for (const UnitParameter& p : unit.parameters) {
    if (!p.trainable) continue;
    list.push_back({.offset = p.shard_offset,
                    .rows = own_rows(p, context_.shard_rank),
                    .columns = p.row_elements,
                    .held_rows = p.rows_per_rank,
                    .all_rows = p.rows});
  }
  return list;
}

void UnitRuns::update(Operands& operands, const StepOfUpdate& step) const {
  constexpr std::size_t kFirstState = 4;
  const bool by_calls = operands.run().inside.count > 0;  // that make tensors
  if (by_calls && step.overflowed) return;
  const Optimizer& row = context_.optimizer;
  const std::size_t end = kFirstState + row.states.size();
  at::Tensor trained = operands.view(0), gradients = operands.view(1);
  std::vector<RandomStretch> stretches;
  if (step.draws) stretches = stretches_of(unit_of(operands), step);
  std::vector<ParameterRows> rows;
  if (by_calls || std::ranges::any_of(row.states, is_by_parameter)) rows = rows_of(unit_of(operands));
  OptimizerCall call{.parameters = trained,
                     .gradients = gradients,
                     .states = {},
                     .gradient_divisor = operands.has(2) ? &operands[2] : nullptr,
                     .found_inf = operands.has(3) ? &operands[3] : nullptr,
                     .options = step.options,
                     .scratch = operands.size() > end && operands.has(end) ? &operands[end] : nullptr,
                     .stretches = stretches,
                     .rows = rows};
  for (std::size_t i = kFirstState; i < end; ++i) call.states.push_back(operands[i]);
  for (std::size_t i = end + 1; i < operands.size(); ++i) call.sums.push_back(operands[i]);
  call.finds_sums = !operands.adds(0);
  std::optional<ExpectedScope> named;
  if (by_calls) named.emplace(operands.expected(), "update: unlisted");
  step.function(call);
}

void copy_buffer(Operands& operands) { operands.view(1).copy_(operands.view(0), /*non_blocking=*/true); }

bool sends_to_update(const program::Run& run, const Job& job) {
  return run.unit >= 0 && run.stream == Stream::to_host && !offload_of(job).gradients;
}

void add_unit_runs(ProgramRunner& runner) {
  using program::Kernel;
  runner.on(Kernel::zero, [](Operands& o) {
    for (std::size_t i = 0; i < o.size(); ++i) {
      if (o.has(i)) o.view(i).zero_();
    }
  });
  for (const Kernel kernel : {Kernel::gather_kept, Kernel::keep_slice, Kernel::gather_parameter}) {
    runner.on(kernel, [](Operands& o) {
      const std::size_t to = o.size() - 1;  // the operands before it go there, one after the other
      std::size_t next = 0;
      for (std::size_t from = 0; from < to; ++from) {
        for (std::size_t part = 0; part < o.parts(from); ++part) o.part(to, next++).copy_(o.part(from, part));
      }
    });
  }
  runner.on(Kernel::copy, copy_buffer);
  for (const Kernel kernel : {Kernel::add, Kernel::add_whole, Kernel::add_own}) {
    runner.on(kernel, [](Operands& o) {
      at::Tensor to = o.view(1);
      add_into(to, o.view(0));
    });
  }
}

}  // namespace vramfit
