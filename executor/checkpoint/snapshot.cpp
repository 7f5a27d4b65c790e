#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "executor/checkpoint/safetensors_header.h"
#include "executor/checkpoint/saved_states.h"
#include "executor/checkpoint/snapshot_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {
namespace {

struct Source {
  HeaderEntry entry;
  at::Tensor tensor;
};

class Collector {
 public:
  explicit Collector(const SnapshotContext& context) : context_(context) {}

  void add(const UnitState& unit, const Precision& precision) {
    for (std::size_t slot = 0; slot < unit.unit().parameters.size(); ++slot) {
      const UnitParameter& p = unit.unit().parameters[slot];
      const std::int64_t first = p.rows_per_rank * context_.shard_group.rank();
      const std::int64_t rows = own_rows(p, context_.shard_group.rank());
      if (rows == 0) continue;
      if (p.quantization != nullptr) {
        add({kCodesKind, unit.rows(p), Dtype::u8}, p, first, {p.stored_elements});
        continue;
      }
      add_rows({kParameterKind, unit.rows(p), p.dtype}, p, {first, rows});
      if (p.is_scaled) add({kScaleKind, unit.scale(p), Dtype::f32}, p, first, {1});
      if (p.trainable) add_states(unit, precision, slot, {first, rows});
    }
  }

  std::vector<Source> take() { return std::move(sources_); }

 private:
  struct Rows {
    std::int64_t first, count;
  };
  /// What a rank has of a parameter, of which it writes a part.
  struct Held {
    std::string_view kind;
    at::Tensor tensor;
    Dtype dtype;
  };

  void add_states(const UnitState& unit, const Precision& precision, std::size_t slot, Rows rows) {
    const UnitParameter& p = unit.unit().parameters[slot];
    for (std::size_t i = 0; i < unit.states().size(); ++i) {
      const OptimizerState& state = context_.optimizer.states[i];
      const StatePart part = saved_part_of(state, unit.unit(), slot, rows.first, rows.count);
      if (part.numbers == 0) continue;
      const Held held{state.name, unit.states()[i]->narrow(0, part.begin, part.numbers), dtype_of(state, precision)};
      if (state.holds == OptimizerState::Holds::elements && state.covers == 1) {
        add_rows(held, p, rows);
      } else {
        add(held, p, rows.first, shape_of(state, part));
      }
    }
  }

  /// Of states without the parameter's rows: the first dim counts rows all the same.
  static std::vector<std::int64_t> shape_of(const OptimizerState& state, const StatePart& part) {
    if (state.holds == OptimizerState::Holds::columns) return {1, part.numbers};
    return {part.numbers};
  }

  const Parameter& parameter_of(const UnitParameter& p) const {
    return context_.graph.parameters[static_cast<std::size_t>(p.parameter)];
  }

  void add_rows(const Held& held, const UnitParameter& p, Rows rows) {
    std::vector<std::int64_t> shape = parameter_of(p).shape;
    shape.front() = rows.count;
    add({held.kind, held.tensor.narrow(0, 0, rows.count * p.row_elements), held.dtype}, p, rows.first,
        std::move(shape));
  }

  void add(const Held& held, const UnitParameter& p, std::int64_t first_row, std::vector<std::int64_t> shape) {
    sources_.push_back(
        {{slice_name(held.kind, parameter_of(p).name, first_row), held.dtype, std::move(shape)}, held.tensor});
  }

  const SnapshotContext& context_;
  std::vector<Source> sources_;
};

}  // namespace

void copy_to_host(const at::Tensor& tensor, std::span<char> into) {
  if (tensor.is_cpu()) {
    std::memcpy(into.data(), tensor.const_data_ptr(), into.size());
    return;
  }
  tensor_over(into.data(), tensor.numel(), tensor.scalar_type()).copy_(tensor.view({-1}));
}

void take_snapshot(const SnapshotContext& context, const std::vector<UnitState>& units, const at::Tensor& memory,
                   Snapshot& into) {
  Collector collector(context);
  const auto replicas = static_cast<std::size_t>(context.replicate_group.size());
  const auto own = static_cast<std::size_t>(context.replicate_group.rank());
  for (std::size_t i = own; i < units.size(); i += replicas) collector.add(units[i], units[i].precision());
  const std::vector<Source> sources = collector.take();
  std::vector<HeaderEntry> entries;
  std::size_t bytes = 0;
  for (const Source& source : sources) {
    entries.push_back(source.entry);
    bytes += static_cast<std::size_t>(entry_bytes(source.entry));
  }
  into.header = safetensors_header(entries, false);
  if (bytes != (memory.defined() ? memory.nbytes() : 0)) {
    throw std::logic_error("a checkpoint has other bytes than the copy that the program has for it");
  }
  const std::span<char> copy(bytes == 0 ? nullptr : static_cast<char*>(memory.mutable_data_ptr()), bytes);
  into.data = copy;
  into.keeps_alive = std::make_shared<const at::Tensor>(memory);
  std::size_t at = 0;
  for (const Source& source : sources) {
    const auto size = static_cast<std::size_t>(entry_bytes(source.entry));
    copy_to_host(source.tensor, copy.subspan(at, size));
    at += size;
  }
}

}  // namespace vramfit
