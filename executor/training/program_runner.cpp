#include "executor/training/program_runner_torch.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

using program::Place;

/// A part of a tensor that is whole and contiguous.
at::Tensor view_of(const at::Tensor& tensor, const program::View& view, std::int64_t base) {
  if (!tensor.defined()) return tensor;
  const std::array<std::int64_t, 2> sizes{view.rows, view.columns}, strides{view.columns == 0 ? 1 : view.pitch, 1};
  const std::size_t dimensions = view.columns == 0 ? 1 : 2;
  const at::IntArrayRef shape(sizes.data(), dimensions);
  const std::int64_t offset = base + view.offset;
  if (offset == 0 && tensor.sizes() == shape) return tensor;
  if (offset == 0 && tensor.numel() == reach(view) && view.pitch == view.columns) return tensor.view(shape);
  return tensor.as_strided(shape, {strides.data(), dimensions}, tensor.storage_offset() + offset);
}

Collectives& group_of(ProcessGroups& groups, program::Axis axis) {
  switch (axis) {
    case program::Axis::shard:
      return groups.shard();
    case program::Axis::reshard:
      return groups.reshard();
    case program::Axis::replicate:
      return groups.replicate();
    case program::Axis::data:
      return groups.world();
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
    case program::Collective::all_to_all: {  // what is sent, then as much that is received
      const auto received = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() / 2);
      return group.all_to_all({tensors.begin(), received}, {received, tensors.end()});
    }
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

at::Tensor Operands::part(std::size_t i, std::size_t number) {
  const program::View& view = place_.view(access(i), static_cast<int>(number));
  return view_of((*this)[i], view, place_.base_of(view));
}

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
    : in_(inputs),
      tensors_(program::buffer_numbers(inputs.lowered)),
      pending_(at_index(inputs.lowered.tokens)),
      recorded_(inputs.device.is_cuda() ? at_index(inputs.lowered.tokens) : 0),
      numbers_(inputs.lowered.main.buffers.size()) {}

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
  if (is_left_out(run, place)) return;
  std::optional<c10::StreamGuard> beside;
  if (run.stream != Stream::compute && run.stream != Stream::host && in_.device.is_cuda())
    beside.emplace(stream_of(run.stream));
  Operands operands(run, place, tensors_);
  functions_.at(static_cast<std::size_t>(run.kernel))(operands);
}

/// The rank's thread is the host: what it is told to compute it does itself.
bool ProgramRunner::is_left_out(const program::Run& run, const Place& place) const {
  using program::Kernel;
  if (in_.has_values) return false;
  const bool fills =
      run.kernel == Kernel::zero || run.kernel == Kernel::load_shard || run.kernel == Kernel::load_states;
  return run.stream == Stream::host || (fills && is_on_host(run, place));
}

bool ProgramRunner::is_on_host(const program::Run& run, const Place& place) const {
  if (run.accesses.count == 0) return false;
  const int first = place.code.accesses[run.accesses.first].buffer;
  return first >= 0 && place.buffer(first).space != program::Space::device;
}

c10::Stream ProgramRunner::stream_of(Stream stream) {
  const c10::impl::VirtualGuardImpl card(in_.device.type());
  if (stream == Stream::compute) return card.getStream(in_.device);
  std::optional<c10::Stream>& made = streams_[static_cast<std::size_t>(stream)];
  if (!made) made = card.getStreamFromGlobalPool(in_.device);
  return *made;
}

std::vector<at::Tensor> ProgramRunner::tensors_of(const program::Start& start, const Place& place) {
  std::vector<at::Tensor> tensors;
  for (std::uint32_t i = 0; i < start.accesses.count; ++i) {
    const program::Access& access = place.code.accesses[start.accesses.first + i];
    const at::Tensor& whole = tensors_[at_index(place.number(access.buffer))];
    if (!Place::has_view(access)) tensors.push_back(whole);
    for (int part = 0; part < place.view_count(access); ++part) {
      const program::View& view = place.view(access, part);
      tensors.push_back(view_of(whole, view, place.base_of(view)));
    }
  }
  return tensors;
}

void ProgramRunner::read(const program::Start& start, const Place& place) {
  expect(0, 0);
  std::optional<c10::StreamGuard> beside;
  if (start.stream != Stream::compute && in_.device.is_cuda()) beside.emplace(stream_of(start.stream));
  pending_[at_index(start.token)] =
      start_on(group_of(in_.groups, start.axis), start.collective, tensors_of(start, place));
}

/// What the host computes is done when anything after it is launched. On CPU ranks everything is.
void ProgramRunner::read(const program::Record& record, const Place& /*place*/) {
  expect(0, 0);
  if (record.stream == Stream::host || !in_.device.is_cuda()) return;
  std::optional<c10::Event>& event = recorded_[at_index(record.token)];
  if (!event) event.emplace(in_.device.type());
  event->record(stream_of(record.stream));
}

void ProgramRunner::read(const program::Wait& wait, const Place& /*place*/) {
  expect(0, 0);
  if (const Pending work = std::move(pending_[at_index(wait.token)])) return work->wait();
  if (recorded_.empty() || !recorded_[at_index(wait.token)]) return;
  const c10::Event& event = *recorded_[at_index(wait.token)];
  wait.stream == Stream::host ? event.synchronize() : event.block(stream_of(wait.stream));
}

void ProgramRunner::read(const program::HostRead& what, const Place& place) {
  numbers_[at_index(what.buffer)] = tensors_[at_index(place.number(what.buffer))].item<double>();
}

void ProgramRunner::read(const program::Mark& mark, const Place& /*place*/) {
  expect(0, 0);
  if (on_mark) on_mark(mark);
}

}  // namespace vramfit
