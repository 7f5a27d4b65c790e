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
    for (const UnitParameter& p : unit.unit().parameters) {
      const std::int64_t first = p.rows_per_rank * context_.shard_group.rank();
      const std::int64_t rows = own_rows(p, context_.shard_group.rank());
      if (rows == 0) continue;
      add_rows({kParameterKind, unit.shard(p), p.dtype}, p, {first, rows});
      if (p.trainable) add_states(unit, precision, p, {first, rows});
    }
  }

  std::vector<Source> take() { return std::move(sources_); }

 private:
  struct Rows {
    std::int64_t first, count;
  };
  struct Flat {
    std::string_view kind;
    const at::Tensor& tensor;
    Dtype dtype;
    std::int64_t covers = 1;  // elements of a parameter that each number is for
  };

  void add_states(const UnitState& unit, const Precision& precision, const UnitParameter& p, Rows rows) {
    for (std::size_t i = 0; i < unit.states().size(); ++i) {
      const OptimizerState& state = context_.optimizer.states[i];
      const Flat flat{state.name, *unit.states()[i], dtype_of(state, precision), state.covers};
      if (state.holds == OptimizerState::Holds::elements) {
        add_rows(flat, p, rows);
      } else if (rows.first == 0) {
        sources_.push_back({{slice_name(flat.kind, parameter_of(p).name, 0), flat.dtype, {1}}, flat.tensor});
      }
    }
  }

  const Parameter& parameter_of(const UnitParameter& p) const {
    return context_.graph.parameters[static_cast<std::size_t>(p.parameter)];
  }

  void add_rows(const Flat& flat, const UnitParameter& p, Rows rows) {
    HeaderEntry entry{slice_name(flat.kind, parameter_of(p).name, rows.first), flat.dtype, parameter_of(p).shape};
    at::Tensor part = UnitState::part(flat.tensor, p, rows.count * p.row_elements, flat.covers);
    if (flat.covers == 1) {
      entry.shape.front() = rows.count;
    } else {
      entry.shape = {part.numel()};
    }
    sources_.push_back({std::move(entry), std::move(part)});
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
