#include "program/lowering/save.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/index.h"
#include "program/optimizers/optimizers.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"

namespace vramfit::program {

SaveLowering::SaveLowering(const SaveInputs& inputs) : in_(inputs), is_rank0_(inputs.in.coords == Coords{}) {
  if (kinds().empty()) return;
  const auto has_codes = [](const vramfit::Unit& unit) {
    return std::ranges::any_of(unit.storages, [](const UnitStorage& s) { return s.quantization != nullptr; });
  };
  // Whole weights would be made of the codes. Of matrices that are trained, there are masters.
  if (in_.in.run.saves_full && std::ranges::any_of(in_.layout.units, has_codes)) {
    throw NotModelled(
        fmt::format("whole weights of what is frozen under --quantization {} ({})", in_.in.job.quantization,
                    has_adapters(in_.in.job) ? "--save-adapters writes adapters alone, --save a checkpoint with codes"
                                             : "--save writes a checkpoint with codes"));
  }
  if (in_.in.run.saves_adapters) require_adapters_alone(in_.in.graph, in_.in.job);
  is_adapter_ = adapter_parameters(in_.in.graph);
  find_units();
  if (in_.in.run.saves) copy_ = copy_of_units();
}

std::vector<Section::Kind> SaveLowering::kinds() const {
  std::vector<Section::Kind> kinds;
  if (in_.in.run.saves) kinds.push_back(Section::Kind::save_sharded);
  if (in_.in.run.saves_full || in_.in.run.saves_adapters) kinds.push_back(Section::Kind::save_full);
  return kinds;
}

void SaveLowering::find_units() {
  units_.resize(in_.layout.units.size());
  const Code& code = in_.writer.code();
  const auto held = [&](const Run& run, std::uint32_t i) {
    const int buffer = code.accesses[run.accesses.first + i].buffer;
    return buffer < 0 ? Held() : Held(in_.writer, buffer);
  };
  for (const Instruction& instruction : code.instructions) {
    const auto* run = std::get_if<Run>(&instruction);
    if (run == nullptr || run->unit < 0) continue;
    Unit& unit = units_[at(run->unit)];
    const std::uint32_t count = run->accesses.count;
    for (std::uint32_t i = 0; run->kernel == Kernel::load_shard && i + 1 < count; ++i) {
      unit.shards.push_back(held(*run, i));
    }
    for (std::uint32_t i = 0; run->kernel == Kernel::load_states && i < count; ++i) {
      unit.states.push_back(held(*run, i));
    }
  }
}

bool SaveLowering::is_written(const UnitParameter& p) const {
  return in_.in.run.saves_full || is_adapter_[at(p.parameter)];
}

bool SaveLowering::is_saved_here(std::size_t unit) const {
  return static_cast<std::int64_t>(unit) % in_.in.job.mesh.replicate == in_.in.coords.replicate;
}

Bytes SaveLowering::saved_bytes(std::size_t unit) const {
  const vramfit::Unit& layout = in_.layout.units[unit];
  Bytes bytes;
  for (std::size_t slot = 0; slot < layout.parameters.size(); ++slot) {
    const UnitParameter& p = layout.parameters[slot];
    const std::int64_t first = p.rows_per_rank * in_.in.coords.shard, rows = own_rows(p, in_.in.coords.shard);
    if (p.quantization != nullptr) {
      if (rows > 0) bytes += Bytes{p.stored_elements};
      continue;
    }
    bytes += rows * p.row_elements * dtype_bytes(p.dtype);
    if (p.is_scaled && rows > 0) bytes += dtype_bytes(Dtype::f32);
    if (!p.trainable) continue;
    for (const OptimizerState& state : optimizer_named(in_.in.job.optimizer).states) {
      const StatePart part = saved_part_of(state, layout, slot, first, rows);
      bytes += part.numbers * dtype_bytes(dtype_of(state, in_.in.job.precision));
    }
  }
  return bytes;
}

Held SaveLowering::copy_of_units() {
  Bytes bytes;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (is_saved_here(u)) bytes += saved_bytes(u);
  }
  return in_.writer.allocate({.bytes = bytes,
                              .label = in_.labels.number("checkpoint: copy on the host"),
                              .segment = -1,
                              .category = Category::temporaries,
                              .space = Space::host});
}

void SaveLowering::sharded() {
  Writer::Operands operands{{&copy_, How::write}};
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (!is_saved_here(u)) continue;
    for (const Held& shard : units_[u].shards) operands.emplace_back(&shard, How::read);
    for (const Held& state : units_[u].states) operands.emplace_back(&state, How::read);
  }
  in_.writer.run({.kernel = Kernel::save_states}, operands);
}

void SaveLowering::write_parameter(std::size_t unit, const UnitParameter& p, const Held& on_host) {
  const vramfit::Unit& layout = in_.layout.units[unit];
  const Held& shard = units_[unit].shards[at(p.storage)];
  const std::int64_t first = storage_offset(layout, p);
  const Dtype dtype = written_dtype(layout, p);
  const bool is_one = in_.layout.shards == 1;
  const Run run{.kernel = Kernel::write_parameter, .unit = static_cast<int>(unit), .parameter = p.parameter};
  if (is_one && !p.is_scaled) {
    const int rows = in_.views.number(list_view(first, p.rows * p.row_elements, dtype));
    if (is_rank0_) in_.writer.run(run, {Writer::viewed(shard, How::read, rows), {&on_host, How::write}});
    return;
  }
  if (is_one && !is_rank0_) return;
  const Held whole = in_.writer.allocate({.bytes = p.padded_elements * dtype_bytes(dtype),
                                          .label = in_.labels.number("full checkpoint"),
                                          .segment = -1,
                                          .category = Category::temporaries,
                                          .dtype = dtype});
  const std::int64_t rank = is_one ? 0 : in_.in.coords.shard;
  const int own = in_.views.number(list_view(first, p.shard_elements, p.dtype)),
            part = in_.views.number(list_view(rank * p.shard_elements, p.shard_elements, dtype));
  const Writer::Operand from = Writer::viewed(shard, How::read, own),
                        to = Writer::viewed(whole, is_one ? How::write : How::write_part, part);
  if (p.is_scaled) {
    const Held& scales = units_[unit].shards[layout.storages.size()];
    const int scale = in_.views.number(list_view(in_.layout.slot_of_parameter[at(p.parameter)], 1, Dtype::f32));
    in_.writer.run({.kernel = Kernel::gather_scaled, .unit = run.unit, .parameter = run.parameter},
                   {from, Writer::viewed(scales, How::read, scale), to});
  } else {
    in_.writer.run({.kernel = Kernel::gather_parameter, .unit = run.unit, .parameter = run.parameter}, {from, to});
  }
  if (!is_one) {
    const int token = in_.tokens++;
    in_.writer.start({.collective = Collective::all_gather,
                      .axis = Axis::shard,
                      .accesses = {},
                      .bytes = p.padded_elements * dtype_bytes(dtype),
                      .token = token,
                      .part = p.shard_elements * dtype_bytes(dtype)},
                     {{&whole, How::add}});
    in_.writer.write(Wait{token});
  }
  const int rows = in_.views.number(list_view(0, p.rows * p.row_elements, dtype));
  if (is_rank0_) in_.writer.run(run, {Writer::viewed(whole, How::read, rows), {&on_host, How::write}});
}

void SaveLowering::full() {
  in_.writer.write(Mark{.phase = Phase::checkpoint_save});
  Bytes largest;
  for (const vramfit::Unit& unit : in_.layout.units) {
    for (const UnitParameter& p : unit.parameters) {
      if (is_written(p)) largest = std::max(largest, p.rows * p.row_elements * dtype_bytes(written_dtype(unit, p)));
    }
  }
  const bool copies = is_rank0_ && in_.in.device.kind == DeviceKind::cuda;
  const Held on_host = in_.writer.allocate({.bytes = copies ? largest : Bytes{0},
                                            .label = in_.labels.number("full checkpoint: copy on the host"),
                                            .segment = -1,
                                            .category = Category::temporaries,
                                            .space = Space::host});
  for (std::size_t u = 0; u < units_.size(); ++u) {
    for (const UnitParameter& p : in_.layout.units[u].parameters) {
      if (is_written(p)) write_parameter(u, p, on_host);
    }
  }
}

}  // namespace vramfit::program
