#include "executor/training/program_runner_torch.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

using program::Place;

/// The parameters' places in a unit's gathered storage.
std::vector<at::Tensor> gathered_parameters(const Unit& unit, const at::Tensor& gathered) {
  std::vector<at::Tensor> parameters;
  for (const UnitParameter& p : unit.parameters) {
    parameters.push_back(gathered.narrow(0, p.gathered_offset, p.padded_elements));
  }
  return parameters;
}

Collectives& group_of(ProcessGroups& groups, program::Axis axis) {
  switch (axis) {
    case program::Axis::shard:
      return groups.shard();
    case program::Axis::reshard:
      return groups.reshard();
    case program::Axis::replicate:
      return groups.replicate();
    case program::Axis::tensor:
    case program::Axis::pipeline:
    case program::Axis::expert:
      throw std::logic_error("an axis that no job has");
  }
  return groups.world();
}

Pending start_on(Collectives& group, program::Collective collective, std::vector<at::Tensor> tensors) {
  switch (collective) {
    case program::Collective::all_gather:
      return group.all_gather(std::move(tensors));
    case program::Collective::reduce_scatter:
      return group.reduce_scatter(std::move(tensors));
    case program::Collective::all_reduce:
      return group.all_reduce(std::move(tensors));
    case program::Collective::all_to_all:
    case program::Collective::send:
    case program::Collective::receive:
      throw std::logic_error("a collective that no job has");
  }
  return nullptr;
}

std::string label_of(const Place& place, int buffer) {
  return label_text(place.program, place.segment_of(buffer), place.buffer(buffer).label);
}

}  // namespace

std::vector<ExpectedAllocation> Operands::expected() const {
  std::vector<ExpectedAllocation> expected;
  for (std::uint32_t i = 0; i < run_.inside.count; ++i) {
    const program::Inside& step = place_.code.inside[run_.inside.first + i];
    if (step.what != program::Inside::What::allocate) continue;
    const program::Buffer& buffer = place_.buffer(step.buffer);
    expected.push_back({buffer.bytes, buffer.category, label_of(place_, step.buffer)});
  }
  return expected;
}

ProgramRunner::ProgramRunner(const Inputs& inputs)
    : in_(inputs), tensors_(program::buffer_numbers(inputs.lowered)), pending_(at_index(inputs.lowered.tokens)) {}

void ProgramRunner::run(const program::Section& section) {
  if (in_.arena != nullptr) in_.arena->begin_section(static_cast<std::size_t>(&section - in_.lowered.sections.data()));
  const ArenaScope scope(in_.arena);
  program::read_section(in_.lowered, section, *this);
}

/// Tells the arena how many requests of its script are the next instruction's.
void ProgramRunner::expect(std::size_t requests, std::int64_t times) {
  if (in_.arena != nullptr) in_.arena->begin_instruction(requests, times);
}

void ProgramRunner::read(const program::Allocate& what, const Place& place) {
  const program::Buffer& buffer = place.buffer(what.buffer);
  expect(buffer.space == program::Space::device ? 1 : 0, 1);
  tensors_[at_index(place.number(what.buffer))] =
      allocate_tensor({buffer.bytes.n / dtype_bytes(buffer.dtype).n}, buffer.dtype,
                      {in_.device, buffer.category, label_of(place, what.buffer), buffer.space});
}

void ProgramRunner::read(const program::Free& what, const Place& place) {
  tensors_[at_index(place.number(what.buffer))].reset();
}

void ProgramRunner::read(const program::Run& run, const Place& place) {
  std::size_t requests = 0;
  for (std::uint32_t i = 0; i < run.inside.count; ++i) {
    const program::Inside& step = place.code.inside[run.inside.first + i];
    const bool is_request = step.what == program::Inside::What::allocate;
    if (is_request && place.buffer(step.buffer).space == program::Space::device) ++requests;
  }
  expect(requests, run.times);
  Operands operands(run, place, tensors_);
  functions_.at(static_cast<std::size_t>(run.kernel))(operands);
}

std::vector<at::Tensor> ProgramRunner::tensors_of(const program::Start& start, const Place& place) {
  std::vector<at::Tensor> tensors;
  for (std::uint32_t i = 0; i < start.accesses.count; ++i) {
    const int buffer = place.code.accesses[start.accesses.first + i].buffer;
    tensors.push_back(tensors_[at_index(place.number(buffer))]);
  }
  const bool is_unit = start.unit >= 0 && start.collective == program::Collective::all_gather;
  return is_unit ? gathered_parameters(in_.layout.units[at_index(start.unit)], tensors.front()) : tensors;
}

void ProgramRunner::read(const program::Start& start, const Place& place) {
  expect(0, 0);
  pending_[at_index(start.token)] =
      start_on(group_of(in_.groups, start.axis), start.collective, tensors_of(start, place));
}

void ProgramRunner::read(const program::Wait& wait, const Place& /*place*/) {
  expect(0, 0);
  const Pending work = std::move(pending_[at_index(wait.token)]);
  if (work) work->wait();
}

void ProgramRunner::read(const program::Mark& mark, const Place& /*place*/) {
  expect(0, 0);
  if (on_mark) on_mark(mark);
}

}  // namespace vramfit
