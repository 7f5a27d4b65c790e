#include "executor/sharding/unit_state_torch.h"

#include <algorithm>

#include "executor/training/fp8_gradients_torch.h"
#include "executor/training/program_runner_torch.h"
#include "executor/training/scaled_masters_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

const at::Tensor kUndefined;  // NOLINT(cert-err58-cpp): an undefined tensor owns nothing

const at::Tensor* tensor_of(const ProgramRunner& runner, int buffer) {
  return buffer < 0 ? &kUndefined : &runner.tensor(buffer);
}

}  // namespace

UnitState::UnitState(const Unit& unit, const Precision& precision, const Buffers& buffers, const ProgramRunner& runner)
    : unit_(&unit),
      precision_(&precision),
      gradient_shard_(tensor_of(runner, buffers.gradient_shard)),
      fp8_gradients_(tensor_of(runner, buffers.fp8_gradients)),
      fp8_scales_(tensor_of(runner, buffers.fp8_scales)),
      scales_(&kUndefined) {
  for (std::size_t i = 0; i < buffers.shards.size(); ++i) {
    const at::Tensor* const tensor = tensor_of(runner, buffers.shards[i]);
    i < unit.storages.size() ? shards_.push_back(tensor) : void(scales_ = tensor);
  }
  for (const int buffer : buffers.states) states_.push_back(tensor_of(runner, buffer));
}

at::Tensor UnitState::gradients() const {
  if (!fp8_gradients_->defined()) return *gradient_shard_;
  const at::Tensor all = allocate_tensor({unit_->trainable_elements}, unit_->gradient,
                                         {fp8_gradients_->device(), Category::temporaries, "gradients to dump"});
  const UnitGradients gradients{.codes = *fp8_gradients_, .scales = *fp8_scales_, .shard = *gradient_shard_};
  all.is_cpu() ? read_fp8_gradients_on_cpu(*unit_, gradients, all)
               : read_fp8_gradients_by_calls(*unit_, gradients, all);
  return all;
}

at::Tensor UnitState::numbers(const UnitParameter& p) const {
  if (!p.is_scaled) return rows(p);
  at::Tensor all = allocate_tensor({p.shard_elements}, unit_->trained,
                                   {shard(p).device(), Category::temporaries, "numbers to dump"});
  scaled_numbers({rows(p), scale(p)}, all);
  return all;
}

at::Tensor UnitState::scale(const UnitParameter& p) const {
  const auto slot = std::ranges::find(unit_->parameters, p.parameter, &UnitParameter::parameter);
  return scales_->narrow(0, slot - unit_->parameters.begin(), 1);
}

at::Tensor UnitState::slice(const at::Tensor& flat, const UnitParameter& p) {
  return flat.narrow(0, p.shard_offset, p.shard_elements);
}

std::vector<UnitState::Buffers> unit_buffers(const program::Program& program, const UnitLayout& layout) {
  std::vector<UnitState::Buffers> units(layout.units.size());
  for (const program::Instruction& instruction : program.main.instructions) {
    const auto* run = std::get_if<program::Run>(&instruction);
    if (run == nullptr || run->unit < 0) continue;
    const auto operand = [&](std::uint32_t i) { return program.main.accesses[run->accesses.first + i].buffer; };
    const auto is_staging = [&](int buffer) {
      const program::Buffer& made = program.main.buffers[static_cast<std::size_t>(buffer)];
      return made.category == Category::communication && made.space != program::Space::device;
    };
    UnitState::Buffers& unit = units[static_cast<std::size_t>(run->unit)];
    const std::uint32_t count = run->accesses.count;
    // One that is sent to the host for its update is whole on the card; parts that are added up there are whole there.
    const bool is_update = run->kernel == program::Kernel::update;
    const bool has_fp8 = unit.fp8_gradients >= 0;  // of which the update gets numbers
    if (is_update && !has_fp8 && (unit.gradient_shard < 0 || !is_staging(operand(1)))) unit.gradient_shard = operand(1);
    if (run->kernel == program::Kernel::read_fp8) {
      unit.fp8_gradients = operand(0);
      unit.fp8_scales = operand(1);
      unit.gradient_shard = operand(2);
    }
    if (run->kernel == program::Kernel::copy && is_staging(operand(1))) unit.gradient_shard = operand(0);
    for (std::uint32_t i = 0; run->kernel == program::Kernel::load_shard && i + 1 < count; ++i) {
      unit.shards.push_back(operand(i));
    }
    for (std::uint32_t i = 0; run->kernel == program::Kernel::load_states && i < count; ++i) {
      unit.states.push_back(operand(i));
    }
  }
  return units;
}

}  // namespace vramfit
