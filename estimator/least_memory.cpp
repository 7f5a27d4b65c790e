// Every step passes each moment below, and whatever is added up there is a block of the ledger that is alive at that
// moment (program/lowering/). What is left out can only lower the bound.
#include "estimator/least_memory.h"

#include <algorithm>
#include <set>

#include "estimator/estimate.h"
#include "estimator/job_keys.h"
#include "estimator/rank_estimate.h"
#include "job/sharding.h"
#include "program/optimizers/optimizers.h"
#include "program/schedules/schedule.h"
#include "program/stages/offload.h"
#include "program/stages/trainable.h"
#include "program/stages/units_layout.h"

namespace vramfit {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Whether a segment keeps what its backward reads; `unknown`: it may, or not.
enum class Kept { all, checkpointed, unknown };

/// Of each segment.
std::vector<Kept> kept_by(const Graph& graph, const Job& job, const std::vector<bool>& has_backward, bool is_open) {
  std::vector<Kept> kept(graph.segments.size(), Kept::all);
  for (std::size_t s = 0; s < kept.size(); ++s) {
    const bool may_recompute = graph.segments[s].role == SegmentRole::block && has_backward[s];
    if (is_open && may_recompute) kept[s] = Kept::unknown;
    if (!is_open && is_checkpointed(job, graph, has_backward, static_cast<int>(s))) kept[s] = Kept::checkpointed;
  }
  return kept;
}

const CheckpointedActivations& checkpointed_by(const Job& job, const SavedActivations& saved) {
  return is_selective(job.checkpointing) ? saved.selective.at(policy_number(job.checkpointing)) : saved.full;
}

/// Activations that the segments before each one hold once they have all run forward; those of all at the end.
std::vector<Bytes> held_below(const std::vector<SavedActivations>& saved, const std::vector<Kept>& kept,
                              const Job& job) {
  std::vector<Bytes> below;
  below.reserve(saved.size() + 1);
  Bytes sum;
  bool input_is_held = false;  // as the output of the segment before
  for (std::size_t s = 0; s < saved.size(); ++s) {
    below.push_back(sum);
    const auto held = [&](const auto& activations) {
      return (input_is_held || activations.holds_input ? saved[s].input : Bytes{}) + activations.inner;
    };
    Bytes least = held(saved[s]);
    if (kept[s] == Kept::checkpointed) least = held(checkpointed_by(job, saved[s]));
    if (kept[s] == Kept::unknown) {
      least = std::min(least, held(saved[s].full));
      for (const CheckpointedActivations& selective : saved[s].selective) least = std::min(least, held(selective));
    }
    sum += least;
    input_is_held = kept[s] == Kept::all && saved[s].holds_output;
  }
  below.push_back(sum);
  return below;
}

/// The moments of the last micro-batch and of the update, each a sum of what is certainly held then.
class Moments {
 public:
  Moments(const LeastMemory::Units& units, const std::vector<SavedActivations>& saved, const Graph& graph,
          const Job& job, OpenChoices open)
      : units_(units),
        saved_(saved),
        job_(job),
        open_(open),
        accumulates_(job.accumulation > 1),
        kept_(kept_by(graph, job, units.has_backward, open.has(OpenChoice::checkpointing))),
        below_(held_below(saved, kept_, job)),
        keeps_units_(units.shards > 1 &&
                     (!sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(job.reshard))),
        prefetches_(!open.has(OpenChoice::prefetch) && job.backward_prefetch != BackwardPrefetch::none),
        finishes_late_(!open.has(OpenChoice::reduce_finish) && job.reduce_finish == ReduceFinish::end) {}

  /// `whole`: gradients of earlier micro-batches are kept whole.
  Bytes most(bool whole) {
    whole_ = whole;
    Bytes most = units_.resident + units_.gradient_shards;
    const bool is_known = !open_.has(OpenChoice::loss);  // what comes after the blocks
    if (is_known) most = std::max(most, after_forward());
    for (std::size_t s = saved_.size(); s-- > units_.top;) {
      if (is_known || s == units_.top) most = std::max(most, of_segment(s));
    }
    if (whole_ || units_.top == saved_.size()) return most;
    if (units_.bottom + 1 < units_.top) most = std::max(most, of_segment(units_.top - 1));
    return std::max(most, of_segment(units_.bottom));
  }

 private:
  /// Gradients of earlier micro-batches, or of this one's segments from `first` on.
  Bytes gradients(std::size_t first) const {
    if (whole_) return units_.whole_gradients;
    if (accumulates_) return units_.gradient_shards;
    return first < saved_.size() ? units_.segments[first].gradient_shards : Bytes{};
  }
  Bytes gathered(std::size_t s) const {
    const LeastMemory::Units::OfSegment& of = units_.segments[s];
    if (keeps_units_) return of.kept + (s > units_.top ? of.gathered : Bytes{});
    return of.slices + of.gathered;
  }
  Bytes ahead(std::size_t s) const { return prefetches_ && !keeps_units_ ? units_.segments[s].next : Bytes{}; }
  Bytes pieces(std::size_t s) const {
    return s < saved_.size() && units_.shards > 1 && !whole_ ? units_.segments[s].pieces : Bytes{};
  }

  Bytes after_forward() const {
    const std::size_t last = saved_.size() - 1;
    const Bytes units = keeps_units_ ? units_.segments[last].kept : units_.slices;
    const Bytes running = below_[last] + saved_[last].forward_peak;
    return units_.resident + gradients(saved_.size()) + units + std::max(running, below_[saved_.size()]);
  }

  Bytes of_segment(std::size_t s) const {
    if (!units_.has_backward[s]) return {};
    Bytes most;
    if (kept_[s] == Kept::checkpointed) {
      most = of_recomputed(s, checkpointed_by(job_, saved_[s]));
    } else {
      most = of_kept(s);
    }
    if (kept_[s] == Kept::unknown) {
      most = std::min(most, of_recomputed(s, saved_[s].full));
      for (const CheckpointedActivations& each : saved_[s].selective) most = std::min(most, of_recomputed(s, each));
    }
    return units_.resident + below_[s] + std::max(most, while_reduced(s));
  }

  /// What lives besides resident bytes and activations below, while backward of a segment runs that kept all it needs.
  /// The reduction of the segment above is still under way.
  Bytes of_kept(std::size_t s) const {
    return gradients(s + 2) + pieces(s + 1) + gathered(s) + ahead(s) + input_of_before(s, saved_[s].holds_input) +
           peak_of(saved_[s].backward);
  }

  /// Likewise of one that is recomputed first. The reduction ends with that, or else with its backward.
  Bytes of_recomputed(std::size_t s, const CheckpointedActivations& activations) const {
    const Bytes input = input_of_before(s, activations.holds_input);
    const Bytes recomputing = gradients(s + 2) + pieces(s + 1) + gathered(s) + input + activations.recompute_peak;
    if (whole_) return recomputing;  // with it sums may become shards
    const Bytes reduced = finishes_late_ ? gradients(s + 2) + pieces(s + 1) : gradients(s + 1);
    return std::max(recomputing, reduced + gathered(s) + ahead(s) + input + peak_of(activations.backward));
  }

  /// After its backward, when all of its gradients are on their way.
  Bytes while_reduced(std::size_t s) const {
    if (s == 0 || whole_) return {};
    const LeastMemory::Units::OfSegment& of = units_.segments[s];
    const Bytes units = keeps_units_ ? units_.segments[s - 1].kept : of.slices + ahead(s);
    return gradients(s + 1) + pieces(s) + units;
  }

  /// A segment's input counts with the segment, unless that drops it while the one before holds it as its output.
  Bytes input_of_before(std::size_t s, bool is_counted) const {
    const bool is_held = s > 0 && kept_[s - 1] == Kept::all && saved_[s - 1].holds_output;
    return is_held && !is_counted ? saved_[s].input : Bytes{};
  }

  Bytes peak_of(const BackwardPeak& peak) const {
    if (whole_) return peak.values;
    return units_.shards > 1 ? peak.many_shards : peak.one_shard;
  }

  const LeastMemory::Units& units_;
  const std::vector<SavedActivations>& saved_;
  const Job& job_;
  OpenChoices open_;
  bool accumulates_;
  std::vector<Kept> kept_;    // by segment
  std::vector<Bytes> below_;  // likewise
  bool keeps_units_, prefetches_, finishes_late_;
  bool whole_ = false;
};

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

namespace {

/// Of the tables of rotary embeddings, for each token of a sequence.
Bytes rope_bytes(const Graph& graph, const Job& job) {
  Bytes sum;
  for (const std::int64_t dims : graph.rope_dims) sum += 2 * (dims / 2) * dtype_bytes(job.precision.buffer);
  return sum;
}

/// Adds up a layout's units, segment by segment.
class UnitSums {
 public:
  UnitSums(const Graph& graph, const Job& job, LeastMemory::Units& result)
      : graph_(graph),
        layout_(lay_out_units(graph, job)),
        offload_(offload_of(job)),
        trainable_(trainable_parameters(graph, job)),
        r_(result) {
    r_.shards = layout_.shards;
    r_.segments.resize(graph.segments.size());
    r_.top = r_.bottom = graph.segments.size();
    for (std::size_t s = graph.segments.size(); s-- > 0;) {
      if (!is_block(s)) continue;
      if (r_.top == graph.segments.size()) r_.top = s;
      r_.bottom = s;
    }
    last_use_.assign(layout_.units.size(), 0);
    for (std::size_t s = 0; s < graph.segments.size(); ++s) {
      for (const int unit : layout_.units_of_segment[s]) last_use_[at(unit)] = s;
    }
  }

  void add(const Job& job) {
    for (const Unit& unit : layout_.units) {
      (offload_.parameters ? r_.host : r_.resident) += shard_bytes(unit);
      if (unit.trainable_elements > 0) add_trained(unit, job);
      r_.gradient_shards += shard_of(unit);
      for (const UnitParameter& p : unit.parameters) {
        if (p.trainable) r_.whole_gradients += p.padded_elements * dtype_bytes(unit.reduce);
      }
    }
    add_gradients();
    add_gathered();
  }

 private:
  /// What an update reads and writes, but for the gradient on the card.
  void add_trained(const Unit& unit, const Job& job) {
    (offload_.states ? r_.host : r_.resident) += optimizer_states(unit, job);
    if (offload_.gradients) r_.host += unit.trainable_elements * dtype_bytes(unit.gradient);
    if (offload_.states && !offload_.parameters) {
      r_.host += unit.trainable_elements * dtype_bytes(unit.storages.front().dtype);
    }
  }

  /// Between reductions; those that leave for host memory are on the card only on their way.
  Bytes shard_of(const Unit& unit) const {
    return offload_.gradients ? Bytes{} : unit.trainable_elements * dtype_bytes(unit.gradient);
  }
  Bytes whole(int unit) const {
    const Unit& u = layout_.units[at(unit)];
    return u.gathered_is_shard ? Bytes{} : u.gathered_elements * dtype_bytes(u.compute);
  }
  Bytes slice(int unit) const {
    const Unit& u = layout_.units[at(unit)];
    return u.gathered_is_shard ? Bytes{} : u.kept_elements * dtype_bytes(u.compute);
  }
  bool is_block(std::size_t s) const { return graph_.segments[s].role == SegmentRole::block && r_.has_backward[s]; }

  /// From the last segment to the first, as backward passes go.
  void add_gradients() {
    std::vector<bool> has_shard(layout_.units.size());
    Bytes shards;
    for (std::size_t s = graph_.segments.size(); s-- > 0;) {
      std::set<int> parameters;
      for (const Op& op : graph_.segments[s].ops) {
        for (const ParameterUse& use : op.parameters) {
          if (trainable_[at(use.parameter)]) parameters.insert(use.parameter);
        }
      }
      for (const int parameter : parameters) {
        const int number = layout_.unit_of_parameter[at(parameter)];
        const Unit& unit = layout_.units[at(number)];
        const UnitParameter& p = unit.parameters[at(layout_.slot_of_parameter[at(parameter)])];
        r_.segments[s].pieces += p.padded_elements * dtype_bytes(unit.reduce);
        if (has_shard[at(number)]) continue;
        has_shard[at(number)] = true;
        shards += shard_of(unit);
      }
      r_.segments[s].gradient_shards = shards;
    }
  }

  /// From the first segment to the last, as units are gathered and left in slices.
  void add_gathered() {
    std::vector<bool> is_kept(layout_.units.size());
    Bytes kept;
    for (std::size_t s = 0; s < graph_.segments.size(); ++s) {
      LeastMemory::Units::OfSegment& of = r_.segments[s];
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
      for (std::size_t u = 0; u < layout_.units.size(); ++u) {
        if (is_kept[u] && last_use_[u] < s) of.slices += slice(static_cast<int>(u));
      }
      of.next = next_of(s);
    }
  }

  Bytes gathered_by(std::size_t s) const {
    Bytes sum;
    for (const int unit : layout_.units_of_segment[s]) sum += whole(unit);
    return sum;
  }

  /// Of the block before `s`, if it has one unit, and one that is its own.
  Bytes next_of(std::size_t s) const {
    if (layout_.shards == 1 || s == 0 || !is_block(s - 1)) return {};
    const std::vector<int>& units = layout_.units_of_segment[s - 1];
    if (units.size() != 1 || last_use_[at(units.front())] != s - 1) return {};
    return whole(units.front()) - slice(units.front());
  }

  const Graph& graph_;
  UnitLayout layout_;
  Offload offload_;
  std::vector<bool> trainable_;        // by parameter
  std::vector<std::size_t> last_use_;  // by unit: the last segment that uses it
  LeastMemory::Units& r_;
};

}  // namespace

LeastMemory::Units LeastMemory::make_units(const Graph& graph, const Job& job) const {
  Units units;
  units.has_backward = segments_with_backward(graph, job);
  UnitSums(graph, job, units).add(job);
  if (!cluster_.is_cpu()) units.resident += cublas_workspace(cluster_.card.device);
  units.rope = rope_bytes(graph, job);
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
  const Bytes ropes = job.sequence * units.rope;
  if (open.has(OpenChoice::micro_batch)) return ropes + units.resident + units.gradient_shards;
  Moments moments(units, *parts.saved, graph, job, open);
  const bool is_choice = job.accumulation > 1 && units.shards > 1;
  if (is_choice && open.has(OpenChoice::accumulate)) {
    return ropes + std::min(moments.most(false), moments.most(true));
  }
  return ropes + moments.most(is_choice && job.accumulate == Accumulate::unsharded);
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

bool LeastMemory::is_too_much(const Parts& parts, const Graph& graph, const Job& job, Bytes least) const {
  if (parts.units != nullptr && exceeds_host_memory(cluster_.cards_per_node * parts.units->host, cluster_)) return true;
  RankEstimate rank;
  rank.breakdown.outside_allocator = outside(graph, job);
  rank.total = least;
  rank.peak_requested = rank.peak_allocated = rank.peak_reserved = least - rank.breakdown.outside_allocator;
  return upper_bound(rank, cluster_.is_cpu()) > cluster_.card.memory;
}

}  // namespace vramfit
