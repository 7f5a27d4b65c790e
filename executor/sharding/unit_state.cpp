#include "executor/sharding/unit_state_torch.h"

#include "executor/training/program_runner_torch.h"

namespace vramfit {

namespace {

const at::Tensor kUndefined;  // NOLINT(cert-err58-cpp): an undefined tensor owns nothing

const at::Tensor* tensor_of(const ProgramRunner& runner, int buffer) {
  return buffer < 0 ? &kUndefined : &runner.tensor(buffer);
}

}  // namespace

UnitState::UnitState(const Unit& unit, const Precision& precision, const Buffers& buffers, const ProgramRunner& runner)
    : unit_(&unit), precision_(&precision), gradient_shard_(tensor_of(runner, buffers.gradient_shard)) {
  for (const int buffer : buffers.shards) shards_.push_back(tensor_of(runner, buffer));
  for (const int buffer : buffers.states) states_.push_back(tensor_of(runner, buffer));
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
    if (is_update && (unit.gradient_shard < 0 || !is_staging(operand(1)))) unit.gradient_shard = operand(1);
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
