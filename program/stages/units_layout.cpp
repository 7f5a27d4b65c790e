#include "program/stages/units_layout.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "job/fields/trained_dtype.h"
#include "job/sharding/sharding.h"
#include "program/ops/op_row.h"
#include "program/optimizers/optimizers.h"
#include "program/stages/offload.h"
#include "program/stages/trainable.h"
#include "program/stages/wrapping.h"

namespace vramfit {

namespace {

constexpr Bytes kParameterAlignment{512};

/// To a multiple of the alignment and of `least` elements; all are powers of two.
std::int64_t align_elements(std::int64_t elements, Dtype dtype, std::int64_t least = 1) {
  const auto bytes = static_cast<std::uint64_t>(dtype_bytes(dtype).n);
  const std::int64_t step = std::max(kParameterAlignment.n >> std::countr_zero(bytes), least);
  return checked_add(elements, step - 1) & -step;
}

/// Units by name, in the order of their first parameters.
class UnitNames {
 public:
  explicit UnitNames(Dtype gradient) : gradient_(gradient) {}

  int unit_called(UnitLayout& layout, const std::string& name, const Precision& precision) {
    if (latest_ >= 0 && layout.units[static_cast<std::size_t>(latest_)].name == name) return latest_;
    return latest_ = find_or_add(layout, name, precision);
  }

 private:
  int find_or_add(UnitLayout& layout, const std::string& name, const Precision& precision) {
    const auto [entry, is_new] = numbers_.try_emplace(name, static_cast<int>(layout.units.size()));
    if (!is_new) return entry->second;
    Unit unit;
    unit.name = name;
    unit.compute = precision.compute;
    unit.reduce = precision.reduce;
    unit.trained = precision.storage;
    unit.gradient = gradient_;
    layout.units.push_back(std::move(unit));
    return entry->second;
  }

  Dtype gradient_;

  std::unordered_map<std::string, int> numbers_;
  int latest_ = -1;  // mostly that of the next parameter too
};

UnitParameter split_rows(const Parameter& parameter, int index, const UnitLayout& layout) {
  UnitParameter p;
  p.parameter = index;
  p.rows = parameter.shape.empty() ? 1 : parameter.shape[0];
  p.row_elements = 1;
  for (std::size_t dim = 1; dim < parameter.shape.size(); ++dim) {
    p.row_elements = checked_mul(p.row_elements, parameter.shape[dim]);
  }
  p.rows_per_rank = ceil_div(p.rows, layout.shards);
  p.shard_elements = checked_mul(p.rows_per_rank, p.row_elements);
  p.padded_elements = checked_mul(p.shard_elements, layout.shards);
  // A slice consists of whole neighbouring shards, so what a rank keeps is contiguous in the gathered parameter.
  if (layout.reshard_ranks > 0) p.kept_elements = p.padded_elements / layout.reshard_ranks;
  return p;
}

/// The number of the unit's storage for `p`, which is made if it is the first parameter there.
int storage_of(Unit& unit, const UnitParameter& p) {
  // What is frozen isn't kept with what is in host memory.
  const auto first = unit.storages.begin() + (unit.codes_bytes > 0 && !p.trainable ? 1 : 0);
  const auto found = std::find_if(first, unit.storages.end(), [&](const UnitStorage& storage) {
    return storage.dtype == p.dtype && storage.quantization == p.quantization && storage.is_scaled == p.is_scaled;
  });
  const auto number = static_cast<int>(found - unit.storages.begin());
  if (found == unit.storages.end()) {
    unit.storages.push_back({.dtype = p.dtype,
                             .quantization = p.quantization,
                             .is_scaled = p.is_scaled,
                             .first = p.trainable ? unit.trainable_elements : 0});
  }
  return number;
}

void hold(UnitParameter& p, const HeldParameter& held) {
  p.trainable = held.trainable;
  p.dtype = held.dtype;
  p.quantization = held.quantization;
  p.trained_as = held.trained_as;
  p.is_scaled = held.is_scaled;
  p.has_fp8_gradient = held.has_fp8_gradient;
  p.stored_elements = p.quantization == nullptr ? p.shard_elements
                                                : quantized_bytes(*p.quantization, p.rows_per_rank, p.row_elements).n;
}

/// Trained parameters come first, and of those the matrices that have another form, or whose gradients have. All of a
/// unit's trained matrices do, or none.
int place_of(const UnitParameter& p) {
  return p.trained_as != nullptr || p.is_scaled || p.has_fp8_gradient ? 0 : p.trainable ? 1 : 2;
}

/// The card's codes of a trained matrix, of which the first storage has `stored` elements so far.
void add_codes(Unit& unit, UnitParameter& p, std::int64_t stored) {
  p.codes_offset = unit.codes_bytes;
  p.codes_bytes = quantized_bytes(*p.trained_as, p.rows_per_rank, p.row_elements).n;
  unit.codes_bytes = checked_add(unit.codes_bytes, align_elements(p.codes_bytes, Dtype::u8));
  unit.coded_elements = stored;
}

/// `block`: of the optimizer, whose states share numbers within it. With one shard, the gathered unit may be the shard.
void assign_offsets(Unit& unit, std::int64_t block, std::int64_t shards) {
  if (!std::ranges::is_sorted(unit.parameters, {}, place_of)) {
    std::ranges::stable_sort(unit.parameters, {}, place_of);
  }
  for (UnitParameter& p : unit.parameters) {
    p.storage = storage_of(unit, p);
    UnitStorage& storage = unit.storages[static_cast<std::size_t>(p.storage)];
    p.gathered_offset = unit.gathered_elements;
    p.shard_offset = checked_add(storage.first, storage.elements);
    p.kept_offset = unit.kept_elements;
    const std::int64_t least = p.trainable ? block : 1;
    unit.gathered_elements =
        checked_add(unit.gathered_elements, align_elements(p.padded_elements, unit.compute, shards == 1 ? least : 1));
    const std::int64_t stored = checked_add(p.shard_offset, align_elements(p.stored_elements, p.dtype, least));
    storage.elements = stored - storage.first;
    const Dtype dtype = p.quantization == nullptr ? p.dtype : unit.compute;
    storage.whole_elements = checked_add(storage.whole_elements, align_elements(p.shard_elements, dtype));
    unit.kept_elements = checked_add(unit.kept_elements, align_elements(p.kept_elements, unit.compute));
    if (p.trainable) unit.trainable_elements = stored;
    if (p.trained_as != nullptr) add_codes(unit, p, stored);
    if (p.is_scaled) {
      unit.scaled_elements = stored;
      ++unit.scales;
    }
    if (p.has_fp8_gradient) {
      unit.fp8_gradient_elements = stored;
      ++unit.fp8_gradients;
    }
  }
}

std::vector<int> largest_first(const std::vector<UnitParameter>& parameters) {
  std::vector<int> order(parameters.size());  // places, then the parameters there
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int place) -> const UnitParameter& { return parameters[static_cast<std::size_t>(place)]; };
  std::ranges::sort(order, [&](int a, int b) {
    const std::int64_t of_a = at(a).padded_elements, of_b = at(b).padded_elements;
    return of_a != of_b ? of_a > of_b : a < b;
  });
  for (int& entry : order) entry = at(entry).parameter;
  return order;
}

void lay_out(Unit& unit, const Job& job, std::int64_t shards) {
  assign_offsets(unit, optimizer_named(job.optimizer).block, shards);
  unit.reduce_order = largest_first(unit.parameters);
  unit.sends_fp8_gradients = job.sends_fp8_gradients && unit.fp8_gradients > 0;
  const bool is_in_compute_dtype =
      unit.storages.size() == 1 && unit.storages.front().dtype == unit.compute && unit.scales == 0;
  unit.gathered_is_shard = shards == 1 && is_in_compute_dtype && !offload_of(job).parameters && unit.codes_bytes == 0;
}

/// Most layers of a model are laid out as one before them. A unit of the whole model is the only one of its kind.
class LaidOutUnits {
 public:
  static constexpr std::size_t kMostParameters = 256;

  LaidOutUnits(const Job& job, std::int64_t shards) : job_(job), shards_(shards) {}

  /// A unit that has all of its parameters, in the order of their first use. Stays where it is.
  void lay_out(Unit& unit) {
    if (unit.parameters.size() > kMostParameters) return vramfit::lay_out(unit, job_, shards_);
    const auto like = std::ranges::find_if(known_, [&](const Known& each) { return is_like(each, unit); });
    if (like == known_.end()) {
      Known made{.before = unit.parameters, .after = &unit};
      vramfit::lay_out(unit, job_, shards_);
      for (const UnitParameter& p : unit.parameters) made.places.push_back(place_in(made.before, p.parameter));
      for (const int parameter : unit.reduce_order) made.reduced.push_back(place_in(made.before, parameter));
      known_.push_back(std::move(made));
      return;
    }
    const std::vector<UnitParameter> before = std::move(unit.parameters);
    std::string name = std::move(unit.name);
    unit = *like->after;
    unit.name = std::move(name);
    for (std::size_t i = 0; i < before.size(); ++i) {
      unit.parameters[i].parameter = before[like->places[i]].parameter;
      unit.reduce_order[i] = before[like->reduced[i]].parameter;
    }
  }

 private:
  struct Known {
    std::vector<UnitParameter> before;      // it was laid out
    const Unit* after = nullptr;            // that was done
    std::vector<std::size_t> places = {};   // of parameters after that: where they were before
    std::vector<std::size_t> reduced = {};  // of Unit::reduce_order: likewise
  };

  static std::size_t place_in(const std::vector<UnitParameter>& parameters, int parameter) {
    return static_cast<std::size_t>(std::ranges::find(parameters, parameter, &UnitParameter::parameter) -
                                    parameters.begin());
  }

  /// Whether they have the same parameters but for their numbers in the graph.
  static bool is_like(const Known& known, const Unit& unit) {
    return std::ranges::equal(known.before, unit.parameters, [](const UnitParameter& p, UnitParameter q) {
      q.parameter = p.parameter;
      return p == q;
    });
  }

  const Job& job_;
  std::int64_t shards_;
  std::vector<Known> known_;
};

void add_unique(std::vector<int>& list, int item) {
  if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

}  // namespace

Bytes shard_bytes(const Unit& unit) {
  Bytes bytes;
  for (const UnitStorage& storage : unit.storages) bytes += storage.elements * dtype_bytes(storage.dtype);
  return bytes + unit.scales * dtype_bytes(Dtype::f32);
}

Bytes card_bytes(const Unit& unit) {
  if (unit.codes_bytes == 0) return shard_bytes(unit);
  const UnitStorage& on_host = unit.storages.front();
  return shard_bytes(unit) - unit.coded_elements * dtype_bytes(on_host.dtype) + Bytes{unit.codes_bytes};
}

Bytes gradient_bytes(const Unit& unit) {
  return gradient_shard_elements(unit) * dtype_bytes(unit.gradient) + gradient_codes_bytes(unit);
}

Dtype gradient_dtype(OpKind kind, const Precision& precision) {
  return op_row(kind).sums_many ? precision.reduce : precision.compute;
}

bool is_direct_gradient(OpKind kind, int parameter, const Precision& precision, const UnitLayout& layout) {
  if (layout.shards > 1) return false;
  const auto index = static_cast<std::size_t>(parameter);
  const Unit& unit = layout.units[static_cast<std::size_t>(layout.unit_of_parameter[index])];
  if (gradient_dtype(kind, precision) != unit.gradient) return false;
  return !unit.parameters[static_cast<std::size_t>(layout.slot_of_parameter[index])].has_fp8_gradient;
}

UnitLayout lay_out_units(const Graph& graph, const Job& job) {
  UnitLayout layout;
  layout.shards = sharding_named(job.sharding).parameters ? job.mesh.shard : 1;
  layout.reshard_ranks = reshard_ranks(job);
  layout.unit_of_parameter.assign(graph.parameters.size(), -1);
  layout.slot_of_parameter.assign(graph.parameters.size(), -1);
  const std::vector<HeldParameter> held = held_parameters(graph, job);
  const std::vector<std::string> names = unit_names(graph, job);
  UnitNames units(kept_gradient_dtype(job));
  for (const Segment& segment : graph.segments) {
    std::vector<int> touched;
    for (const Op& op : segment.ops) {
      for (const ParameterUse& use : op.parameters) {
        const auto index = static_cast<std::size_t>(use.parameter);
        int& unit = layout.unit_of_parameter[index];
        if (unit < 0) {
          unit = units.unit_called(layout, names[index], job.precision);
          UnitParameter p = split_rows(graph.parameters[index], use.parameter, layout);
          hold(p, held[index]);
          std::vector<UnitParameter>& parameters = layout.units[static_cast<std::size_t>(unit)].parameters;
          if (parameters.empty()) parameters.reserve(segment.ops.size());
          parameters.push_back(p);
        }
        add_unique(touched, unit);
      }
    }
    layout.units_of_segment.push_back(std::move(touched));
  }
  LaidOutUnits known(job, layout.shards);
  for (Unit& unit : layout.units) {
    known.lay_out(unit);
    for (std::size_t slot = 0; slot < unit.parameters.size(); ++slot) {
      layout.slot_of_parameter[static_cast<std::size_t>(unit.parameters[slot].parameter)] = static_cast<int>(slot);
    }
  }
  return layout;
}

}  // namespace vramfit
