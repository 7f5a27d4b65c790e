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

/// Whether a segment keeps only its input until backward; `unknown`: it may, or not.
enum class Kept { all, input, unknown };

/// Activations that the segments before `end` hold once they have all run forward.
Bytes held_below(const std::vector<SavedActivations>& saved, const std::vector<Kept>& kept, std::size_t end) {
  Bytes sum;
  bool input_is_held = false;  // as the output of the segment before
  for (std::size_t s = 0; s < end; ++s) {
    const Bytes of_all = (input_is_held || saved[s].holds_input ? saved[s].input : Bytes{}) + saved[s].inner;
    if (kept[s] == Kept::all) sum += of_all;
    if (kept[s] == Kept::input) sum += saved[s].input;
    if (kept[s] == Kept::unknown) sum += std::min(of_all, saved[s].input);
    input_is_held = kept[s] == Kept::all && saved[s].holds_output;
  }
  return sum;
}

/// What the topmost block adds when its backward begins: all that it saved, and the gradient of its output.
Bytes held_by_top(const std::vector<SavedActivations>& saved, const std::vector<Kept>& kept, std::size_t top) {
  const SavedActivations& s = saved[top];
  const bool before_holds = top > 0 && kept[top - 1] == Kept::all && saved[top - 1].holds_output;
  const auto input_if = [&](bool holds) { return before_holds || holds ? s.input : Bytes{}; };
  const Bytes of_all = input_if(s.holds_input) + s.inner + (s.holds_output ? s.output : Bytes{});
  const Bytes of_input = input_if(s.holds_input_recomputed) + s.recomputed_inner;
  if (kept[top] == Kept::all) return s.output + of_all;
  if (kept[top] == Kept::input) return s.output + of_input;
  return s.output + std::min(of_all, of_input);
}

/// Of each segment.
std::vector<Kept> kept_by(const Graph& graph, const Job& job, const std::vector<bool>& has_backward, bool is_open) {
  std::vector<Kept> kept(graph.segments.size(), Kept::all);
  for (std::size_t s = 0; s < kept.size(); ++s) {
    const bool may_recompute = graph.segments[s].role == SegmentRole::block && has_backward[s];
    if (is_open && may_recompute) kept[s] = Kept::unknown;
    if (!is_open && is_checkpointed(job, graph, has_backward, static_cast<int>(s))) kept[s] = Kept::input;
  }
  return kept;
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

LeastMemory::Parts LeastMemory::parts_of(const Graph& graph, const Job& job, OpenChoices open) {
  if (job.runtime != Runtime::vramfit) return {};
  return {.units = &units_of(graph, job), .saved = open.has(OpenChoice::micro_batch) ? nullptr : &saved_of(graph, job)};
}

Bytes LeastMemory::requested(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const {
  if (parts.units == nullptr) return {};
  const Units& units = *parts.units;
  const Bytes at_optimizer = units.states + units.gradient_shards;
  if (open.has(OpenChoice::micro_batch)) return at_optimizer;
  const std::vector<SavedActivations>& saved = *parts.saved;
  const std::vector<Kept> kept = kept_by(graph, job, units.has_backward, open.has(OpenChoice::checkpointing));
  // The last micro-batch starts with what those before it left.
  Bytes left = units.states;
  if (job.accumulation > 1) {
    const bool is_open = open.has(OpenChoice::accumulate) && job.mesh.shard > 1;
    const bool whole = job.accumulate == Accumulate::unsharded && job.mesh.shard > 1;
    if (is_open) {
      left += std::min(units.whole_gradients, units.gradient_shards);
    } else {
      left += whole ? units.whole_gradients : units.gradient_shards;
    }
  }
  const bool keeps_units = job.mesh.shard > 1 &&
                           (!sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(job.reshard));
  Bytes most = at_optimizer;
  // With an open loss, what comes after the blocks isn't known.
  if (!open.has(OpenChoice::loss)) {
    most = std::max(most, left + (keeps_units ? units.gathered : units.slices) + held_below(saved, kept, saved.size()));
  }
  if (units.top == saved.size()) return most;
  const Bytes gathered_at_top = keeps_units ? units.gathered : units.slices - units.top_slices + units.top_gathered;
  return std::max(most,
                  left + gathered_at_top + held_below(saved, kept, units.top) + held_by_top(saved, kept, units.top));
}

Bytes LeastMemory::outside(const Graph& graph, const Job& job) const {
  if (!std::holds_alternative<ReshardGroups>(job.reshard)) return outside_allocator(graph, job, cluster_);
  Job ungrouped = job;  // whether --reshard N makes a group takes a schedule to find out
  ungrouped.reshard = ReshardAlways{};
  return outside_allocator(graph, ungrouped, cluster_);
}

Bytes LeastMemory::total(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const {
  return requested(parts, graph, job, open) + outside(graph, job);
}

bool LeastMemory::is_too_much(const Graph& graph, const Job& job, Bytes least) const {
  RankEstimate rank;
  rank.breakdown.outside_allocator = outside(graph, job);
  rank.total = least;
  rank.peak_requested = rank.peak_allocated = rank.peak_reserved = least - rank.breakdown.outside_allocator;
  return upper_bound(rank, cluster_.is_cpu()) > cluster_.card.memory;
}

}  // namespace vramfit
