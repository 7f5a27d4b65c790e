// What a rank holds of its units, added up from their layout without a schedule.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/numbers/index.h"
#include "estimator/least/least_memory.h"
#include "estimator/rank_estimate.h"
#include "program/lowering/host.h"
#include "program/optimizers/optimizers.h"
#include "program/schedules/schedule.h"
#include "program/stages/offload.h"
#include "program/stages/trainable.h"
#include "program/stages/units_layout.h"

namespace vramfit {

namespace {

Bytes optimizer_states(const Unit& unit, const Job& job) {
  Bytes sum;
  for (const OptimizerState& state : optimizer_named(job.optimizer).states) {
    sum += elements_of(state, unit) * dtype_bytes(dtype_of(state, job.precision));
  }
  return sum;
}

/// Of the tables of rotary embeddings, for each token of a sequence.
Bytes rope_bytes(const Graph& graph, const Job& job) {
  Bytes sum;
  for (const std::int64_t dims : graph.rope_dims) sum += 2 * (dims / 2) * dtype_bytes(job.precision.buffer);
  return sum;
}

/// Adds up a layout's units, segment by segment.
class UnitSums {
 public:
  UnitSums(const Graph& graph, const UnitLayout& layout, const Job& job, LeastMemory::Units& result)
      : graph_(graph),
        layout_(layout),
        offload_(offload_of(job)),
        trainable_(trainable_parameters(graph, job)),
        r_(result) {
    r_.has_backward = segments_with_backward(graph, trainable_);
    r_.shards = layout_.shards;
    r_.segments.resize(graph.segments.size());
    r_.top = r_.bottom = graph.segments.size();
    for (std::size_t s = graph.segments.size(); s-- > 0;) {
      if (!is_block(s)) continue;
      if (r_.top == graph.segments.size()) r_.top = s;
      r_.bottom = s;
    }
    last_use_.assign(layout_.units.size(), 0);
    first_use_.assign(layout_.units.size(), graph.segments.size());
    for (std::size_t s = 0; s < graph.segments.size(); ++s) {
      for (const int unit : layout_.units_of_segment[s]) {
        last_use_[at(unit)] = s;
        first_use_[at(unit)] = std::min(first_use_[at(unit)], s);
      }
    }
  }

  void add(const Job& job) {
    for (const Unit& unit : layout_.units) {
      offload_.parameters ? r_.host += shard_bytes(unit) + Bytes{unit.codes_bytes} : r_.resident += card_bytes(unit);
      if (unit.trainable_elements > 0) add_trained(unit, job);
      r_.gradient_shards += shard_of(unit);
      r_.largest_gradient_shard = std::max(r_.largest_gradient_shard, shard_of(unit));
      for (const UnitParameter& p : unit.parameters) {
        if (p.trainable) r_.whole_gradients += p.padded_elements * dtype_bytes(unit.reduce);
      }
    }
    add_staging();
    add_gradients();
    add_gathered();
    r_.below_top = r_.top < graph_.segments.size() ? above_other_unit(r_.top) : 0;
    if (r_.below_top > 0) --r_.below_top;
  }

 private:
  /// What an update reads and writes, but for the gradient on the card.
  void add_trained(const Unit& unit, const Job& job) {
    // Paged states are no part of a card's total, and in host memory only as far as the card has no room for them.
    if (!offload_.paged_states) (offload_.states ? r_.host : r_.resident) += optimizer_states(unit, job);
    if (offload_.gradients) r_.host += unit.trainable_elements * dtype_bytes(unit.gradient);
    if (offload_.states && !offload_.parameters) {
      r_.host += unit.trainable_elements * dtype_bytes(unit.storages.front().dtype);
    }
  }

  void add_staging() {
    r_.host +=
        program::codes_staging(layout_, offload_).all() + program::gradients_staging(layout_, offload_, false).all();
    if (offload_.gradients) r_.host_sums = program::gradients_staging(layout_, offload_, true).all();
  }

  /// Between reductions; those that leave for host memory are on the card only on their way.
  Bytes shard_of(const Unit& unit) const { return offload_.gradients ? Bytes{} : gradient_bytes(unit); }
  Bytes whole(int unit) const {
    const Unit& u = layout_.units[at(unit)];
    return u.gathered_is_shard ? Bytes{} : u.gathered_elements * dtype_bytes(u.compute);
  }
  Bytes slice(int unit) const {
    const Unit& u = layout_.units[at(unit)];
    return u.gathered_is_shard ? Bytes{} : u.kept_elements * dtype_bytes(u.compute);
  }
  bool is_block(std::size_t s) const { return graph_.segments[s].role == SegmentRole::block && r_.has_backward[s]; }

  /// Parameters that a segment has gradients of, each once, in ascending order.
  std::vector<int> trained_by(const Segment& segment) const {
    std::vector<int> parameters;
    parameters.reserve(2 * segment.ops.size());
    for (const Op& op : segment.ops) {
      for (const ParameterUse& use : op.parameters) {
        if (trainable_[at(use.parameter)]) parameters.push_back(use.parameter);
      }
    }
    std::ranges::sort(parameters);
    const auto repeated = std::ranges::unique(parameters);
    parameters.erase(repeated.begin(), repeated.end());
    return parameters;
  }

  /// From the last segment to the first, as backward passes go.
  void add_gradients() {
    std::vector<std::vector<int>> trained(graph_.segments.size());
    std::vector<std::size_t> completes_at(layout_.units.size());  // by unit: its last segment in backward
    for (std::size_t s = graph_.segments.size(); s-- > 0;) {
      trained[s] = trained_by(graph_.segments[s]);
      for (const int parameter : trained[s]) completes_at[at(layout_.unit_of_parameter[at(parameter)])] = s;
    }
    std::vector<Bytes> completed(graph_.segments.size());              // by segment
    std::vector<std::array<bool, 2>> has_shard(layout_.units.size());  // and has codes of gradients in FP8
    Bytes shards, complete;
    for (std::size_t s = graph_.segments.size(); s-- > 0;) {
      for (const int parameter : trained[s]) {
        const int number = layout_.unit_of_parameter[at(parameter)];
        const Unit& unit = layout_.units[at(number)];
        const UnitParameter& p = unit.parameters[at(layout_.slot_of_parameter[at(parameter)])];
        const bool is_coded = unit.sends_fp8_gradients && p.has_fp8_gradient;
        r_.segments[s].pieces += p.padded_elements * dtype_bytes(is_coded ? Dtype::u8 : unit.reduce);
        const Bytes part =
            p.has_fp8_gradient ? gradient_codes_bytes(unit) : shard_of(unit) - gradient_codes_bytes(unit);
        if (offload_.gradients || std::exchange(has_shard[at(number)].at(p.has_fp8_gradient ? 1 : 0), true)) continue;
        shards += part;
        completed[completes_at[at(number)]] += part;
      }
      complete += completed[s];
      r_.segments[s].gradient_shards = shards;
      r_.segments[s].unfinished = shards - complete;
    }
  }

  /// From the first segment to the last, as units are gathered and left in slices.
  void add_gathered() {
    std::vector<bool> is_kept(layout_.units.size());
    Bytes kept, left;  // slices of units that no later segment uses
    for (std::size_t s = 0; s < graph_.segments.size(); ++s) {
      LeastMemory::Units::OfSegment& of = r_.segments[s];
      of.slices = left;
      const bool reads = r_.has_backward[s] && reads_weights_in_backward(graph_.segments[s]);
      for (const int unit : layout_.units_of_segment[s]) {
        if (reads && !is_kept[at(unit)]) of.gathered += whole(unit);
        if (!is_block(s) || is_kept[at(unit)]) continue;
        is_kept[at(unit)] = true;
        kept += whole(unit);
        r_.slices += slice(unit);
      }
      of.kept = kept;
      if (reads && is_block(s)) of.gathered = gathered_by(s);
      for (const int unit : layout_.units_of_segment[s]) {
        if (is_kept[at(unit)] && last_use_[at(unit)] == s) left += slice(unit);
      }
      of.next = next_of(s);
      of.running = gathered_by(s);
      of.last_kept = last_kept_at(s);
      for (std::size_t passes = 1; passes <= of.next_forward.size(); ++passes) {
        of.next_forward.at(passes - 1) = next_in_forward(s, passes);
      }
    }
  }

  Bytes gathered_by(std::size_t s) const {
    Bytes sum;
    for (const int unit : layout_.units_of_segment[s]) sum += whole(unit);
    return sum;
  }

  /// Of the block before `s` and those that share its unit, if it has one unit that no segment uses before in backward.
  Bytes next_of(std::size_t s) const {
    const std::size_t next = above_other_unit(s);
    if (layout_.shards == 1 || next == 0 || !is_block(next - 1)) return {};
    const std::vector<int>& units = layout_.units_of_segment[next - 1];
    if (units.size() != 1 || last_use_[at(units.front())] != next - 1) return {};
    return whole(units.front()) - slice(units.front());
  }

  bool has(std::size_t s, int unit) const { return std::ranges::count(layout_.units_of_segment[s], unit) > 0; }

  /// Of the last block's units, from its forward pass until its backward pass reads them again.
  Bytes last_kept_at(std::size_t s) const {
    Bytes sum;
    if (layout_.shards == 1 || s <= r_.top || !reads_weights_in_backward(graph_.segments[r_.top])) return sum;
    for (const int unit : layout_.units_of_segment[r_.top]) {
      if (!has(s, unit)) sum += whole(unit);
    }
    return sum;
  }

  /// Of the next so many segments that need units which those before them don't, as forward passes go.
  Bytes next_in_forward(std::size_t s, std::size_t passes) const {
    Bytes sum;
    if (layout_.shards == 1) return sum;
    for (std::size_t next = s + 1, last = s; next < graph_.segments.size() && passes > 0; ++next) {
      const std::vector<int>& units = layout_.units_of_segment[next];
      if (std::ranges::all_of(units, [&](int unit) { return has(last, unit); })) continue;
      for (const int unit : units) {
        if (first_use_[at(unit)] == next) sum += whole(unit);
      }
      last = next;
      --passes;
    }
    return sum;
  }

  /// The lowest segment down from `s` whose blocks all share its one unit.
  std::size_t above_other_unit(std::size_t s) const {
    const std::vector<int>& units = layout_.units_of_segment[s];
    while (s > 0 && units.size() == 1 && is_block(s) && is_block(s - 1) && layout_.units_of_segment[s - 1] == units)
      --s;
    return s;
  }

  const Graph& graph_;
  const UnitLayout& layout_;
  Offload offload_;
  std::vector<bool> trainable_;                    // by parameter
  std::vector<std::size_t> first_use_, last_use_;  // by unit: the first and the last segment that uses it
  LeastMemory::Units& r_;
};

}  // namespace

LeastMemory::Units LeastMemory::make_units(const Graph& graph, const Job& job) {
  Units units;
  UnitSums(graph, stages_->layout_of(graph, job), job, units).add(job);
  if (!cluster_.is_cpu()) units.resident += cublas_workspace(cluster_.card.device);
  units.rope = rope_bytes(graph, job);
  return units;
}

}  // namespace vramfit
