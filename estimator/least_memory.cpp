// Every step passes each moment below, and whatever is added up there is a block of the ledger that is alive at that
// moment (program/lowering/). What is left out can only lower the bound.
#include "estimator/least_memory.h"

#include <algorithm>

#include "estimator/job_keys.h"
#include "estimator/rank_estimate.h"
#include "job/sharding.h"
#include "program/optimizers/optimizers.h"
#include "program/schedules/schedule.h"
#include "program/stages/trainable.h"
#include "program/stages/units_layout.h"

namespace vramfit {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// The block whose backward comes first; the number of segments when none has one.
std::size_t topmost_block(const Graph& graph, const std::vector<bool>& has_backward) {
  for (std::size_t s = graph.segments.size(); s-- > 0;) {
    if (graph.segments[s].role == SegmentRole::block && has_backward[s]) return s;
  }
  return graph.segments.size();
}

/// Activations that the segments before `end` hold once they have all run forward.
Bytes held_below(const std::vector<SavedActivations>& saved, const std::vector<bool>& checkpointed, std::size_t end) {
  Bytes sum;
  bool input_is_held = false;  // as the output of the segment before
  for (std::size_t s = 0; s < end; ++s) {
    if (input_is_held || checkpointed[s] || saved[s].holds_input) sum += saved[s].input;
    if (!checkpointed[s]) sum += saved[s].inner;
    input_is_held = !checkpointed[s] && saved[s].holds_output;
  }
  return sum;
}

/// What the topmost block adds when its backward begins: all that it saved, and the gradient of its output.
Bytes held_by_top(const std::vector<SavedActivations>& saved, const std::vector<bool>& checkpointed, std::size_t top) {
  const SavedActivations& s = saved[top];
  const bool before_holds = top > 0 && !checkpointed[top - 1] && saved[top - 1].holds_output;
  Bytes sum = s.output;
  if (before_holds || (checkpointed[top] ? s.holds_input_recomputed : s.holds_input)) sum += s.input;
  if (checkpointed[top]) return sum + s.recomputed_inner;
  return sum + s.inner + (s.holds_output ? s.output : Bytes{});
}

Bytes optimizer_states(const Unit& unit, const Job& job) {
  Bytes sum;
  for (const OptimizerState& state : optimizer_named(job.optimizer).states) {
    sum += elements_of(state, unit) * dtype_bytes(dtype_of(state, job.precision));
  }
  return sum;
}

}  // namespace

const std::vector<SavedActivations>& LeastMemory::saved_of(const Graph& graph, const Job& job) {
  const std::string key = ops_key(graph, job);
  const auto found = saved_.find(key);
  if (found != saved_.end()) return found->second;
  return saved_.emplace(key, saved_activations(tape_inputs(graph, job, cluster_.card.device))).first->second;
}

LeastMemory::Units LeastMemory::make_units(const Graph& graph, const Job& job) const {
  const UnitLayout layout = lay_out_units(graph, job);
  Units units;
  units.has_backward = segments_with_backward(graph, job);
  units.top = topmost_block(graph, units.has_backward);
  std::vector<bool> of_block(layout.units.size()), of_top(layout.units.size());
  for (std::size_t s = 0; s < graph.segments.size(); ++s) {
    if (graph.segments[s].role != SegmentRole::block || !units.has_backward[s]) continue;
    for (const int unit : layout.units_of_segment[s]) of_block[at(unit)] = true;
    if (s != units.top) continue;
    for (const int unit : layout.units_of_segment[s]) of_top[at(unit)] = true;
  }
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    const Unit& unit = layout.units[u];
    units.states += shard_bytes(unit);
    if (unit.trainable_elements > 0) units.states += optimizer_states(unit, job);
    units.gradient_shards += unit.trainable_elements * dtype_bytes(unit.gradient);
    for (const UnitParameter& p : unit.parameters) {
      if (p.trainable) units.whole_gradients += p.padded_elements * dtype_bytes(unit.reduce);
    }
    if (unit.gathered_is_shard || !of_block[u]) continue;
    const Bytes whole = unit.gathered_elements * dtype_bytes(unit.compute);
    const Bytes slice = unit.kept_elements * dtype_bytes(unit.compute);
    units.gathered += whole;
    units.slices += slice;
    if (!of_top[u]) continue;
    units.top_gathered += whole;
    units.top_slices += slice;
  }
  return units;
}

const LeastMemory::Units& LeastMemory::units_of(const Graph& graph, const Job& job) {
  const std::string key = units_key(graph, job);
  const auto found = units_.find(key);
  if (found != units_.end()) return found->second;
  return units_.emplace(key, make_units(graph, job)).first->second;
}

Bytes LeastMemory::requested(const Graph& graph, const Job& job) {
  if (job.runtime != Runtime::vramfit) return {};
  const Units& units = units_of(graph, job);
  const std::vector<SavedActivations>& saved = saved_of(graph, job);
  std::vector<bool> checkpointed;
  for (std::size_t s = 0; s < saved.size(); ++s) {
    checkpointed.push_back(is_checkpointed(job, graph, units.has_backward, static_cast<int>(s)));
  }
  // The last micro-batch starts with what those before it left.
  Bytes left = units.states;
  if (job.accumulation > 1) {
    const bool whole = job.accumulate == Accumulate::unsharded && job.mesh.shard > 1;
    left += whole ? units.whole_gradients : units.gradient_shards;
  }
  const bool keeps_units = job.mesh.shard > 1 &&
                           (!sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(job.reshard));
  const Bytes at_optimizer = units.states + units.gradient_shards;
  const Bytes after_forward =
      left + (keeps_units ? units.gathered : units.slices) + held_below(saved, checkpointed, saved.size());
  if (units.top == saved.size()) return std::max(at_optimizer, after_forward);
  const Bytes gathered_at_top = keeps_units ? units.gathered : units.slices - units.top_slices + units.top_gathered;
  const Bytes at_top =
      left + gathered_at_top + held_below(saved, checkpointed, units.top) + held_by_top(saved, checkpointed, units.top);
  return std::max({at_optimizer, after_forward, at_top});
}

Bytes LeastMemory::least_outside(const Graph& graph, const Job& job) const {
  Job ungrouped = job;  // whether --reshard N makes a group takes a schedule to find out
  if (std::holds_alternative<ReshardGroups>(job.reshard)) ungrouped.reshard = ReshardAlways{};
  return outside_allocator(graph, ungrouped, cluster_);
}

Bytes LeastMemory::total(const Graph& graph, const Job& job) {
  return requested(graph, job) + least_outside(graph, job);
}

bool LeastMemory::is_too_much(const Graph& graph, const Job& job) {
  RankEstimate least;
  least.peak_requested = least.peak_allocated = least.peak_reserved = requested(graph, job);
  least.breakdown.outside_allocator = least_outside(graph, job);
  least.total = least.peak_reserved + least.breakdown.outside_allocator;
  return upper_bound(least, cluster_.is_cpu()) > cluster_.card.memory;
}

}  // namespace vramfit
