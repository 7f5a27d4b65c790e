// Every step passes each moment below, and whatever is added up there is a block of the ledger that is alive at that
// moment (program/lowering/). What is left out can only lower the bound.
#include "estimator/least/least_memory.h"

#include <algorithm>
#include <optional>

#include "estimator/estimate.h"
#include "estimator/least/job_keys.h"
#include "estimator/least/leaving_activations.h"
#include "estimator/rank_estimate.h"
#include "job/sharding/sharding.h"
#include "program/schedules/schedule.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

/// Activations that the segments before each one hold once they have all run forward; those of all at the end.
/// On the card: those that leave it may count as nothing.
std::vector<Bytes> held_below(const std::vector<SavedActivations>& saved, const std::vector<Kept>& kept,
                              const std::vector<bool>& leave, std::optional<std::size_t> policy) {
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
    if (kept[s] == Kept::checkpointed) least = held(checkpointed_by(policy, saved[s]));
    if (kept[s] == Kept::unknown) {
      least = std::min(least, held(saved[s].full));
      for (const CheckpointedActivations& selective : saved[s].selective) least = std::min(least, held(selective));
    }
    if (!leave[s]) sum += least;
    input_is_held = kept[s] == Kept::all && saved[s].holds_output;
  }
  below.push_back(sum);
  return below;
}

/// Gradient shards during an update: those of all units, unless each goes before the next one is complete.
Bytes while_updated(const LeastMemory::Units& units, const Job& job) {
  return job.optimizer_in_backward ? units.largest_gradient_shard : units.gradient_shards;
}

/// The moments of the last micro-batch and of the update, each a sum of what is certainly held then.
class Moments {
 public:
  Moments(const LeastMemory::Units& units, const std::vector<SavedActivations>& saved,
          const LeastMemory::HeldActivations& held, const Job& job, OpenChoices open)
      : units_(units),
        saved_(saved),
        job_(job),
        open_(open),
        accumulates_(job.accumulation > 1),
        policy_(policy_of(job)),
        kept_(held.kept),
        below_(held.below),
        keeps_units_(units.shards > 1 &&
                     (!sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(job.reshard))),
        keeps_last_(std::holds_alternative<ReshardLastKept>(job.reshard)),
        prefetches_(!open.has(OpenChoice::prefetch) && job.backward_prefetch != BackwardPrefetch::none),
        passes_ahead_(open.has(OpenChoice::prefetch) || job.prefetch_limit > 0 ? 0 : job.forward_prefetch),
        finishes_late_(job.reduce_finish == ReduceFinish::end) {}

  /// `whole`: gradients of earlier micro-batches are kept whole.
  Bytes most(bool whole) {
    whole_ = whole;
    Bytes most = units_.resident + while_updated(units_, job_);
    const bool is_known = !open_.has(OpenChoice::loss);  // what comes after the blocks
    if (is_known) most = std::max({most, after_forward(), while_running()});
    for (std::size_t s = saved_.size(); s-- > units_.top;) {
      if (is_known || s == units_.top) most = std::max(most, of_segment(s));
    }
    if (whole_) return most;
    most = std::max(most, of_segment(0));  // of an embedding, whose gradients may be the largest
    if (units_.top == saved_.size()) return most;
    if (units_.bottom + 1 < units_.top) most = std::max(most, of_segment(units_.top - 1));
    if (units_.bottom < units_.below_top && units_.below_top + 1 < units_.top) {
      most = std::max(most, of_segment(units_.below_top));
    }
    return std::max(most, of_segment(units_.bottom));
  }

 private:
  /// Gradients of earlier micro-batches, or of this one's segments from `first` on.
  Bytes gradients(std::size_t first) const {
    if (whole_) return units_.whole_gradients;
    if (accumulates_) return units_.gradient_shards;
    if (first >= saved_.size()) return {};
    const LeastMemory::Units::OfSegment& of = units_.segments[first];
    return job_.optimizer_in_backward ? of.unfinished : of.gradient_shards;
  }
  Bytes gathered(std::size_t s) const {
    const LeastMemory::Units::OfSegment& of = units_.segments[s];
    if (keeps_units_) return of.kept + (s > units_.top ? of.gathered : Bytes{});
    return of.slices + of.gathered + last_kept(s);
  }
  Bytes last_kept(std::size_t s) const { return keeps_last_ ? units_.segments[s].last_kept : Bytes{}; }
  /// The last block's units count with what is kept, if they are.
  Bytes ahead(std::size_t s) const {
    const bool is_gathered = keeps_units_ || (keeps_last_ && s > units_.top);
    return prefetches_ && !is_gathered ? units_.segments[s].next : Bytes{};
  }
  Bytes pieces(std::size_t s) const {
    return s < saved_.size() && units_.shards > 1 && !whole_ ? units_.segments[s].pieces : Bytes{};
  }

  Bytes after_forward() const {
    const std::size_t last = saved_.size() - 1;
    const Bytes units = keeps_units_ ? units_.segments[last].kept : units_.slices;
    const Bytes running = below_[last] + saved_[last].forward_peak;
    const Bytes making = gathered(last) + below_[last] + peak_of(saved_[last].making_gradients);
    const Bytes most = std::max(making, units + std::max(running, below_[saved_.size()]));
    return units_.resident + gradients(saved_.size()) + most;
  }

  /// While a segment runs forward whose units, with those that are gathered ahead, may be the most: the first two, with
  /// an embedding's, and those from which the prefetch reaches what comes after the blocks.
  Bytes while_running() const {
    Bytes most;
    for (std::size_t s = 0; s < saved_.size(); ++s) {
      if (s < 2 || s + 2 >= units_.top) most = std::max(most, running(s));
    }
    return most;
  }

  Bytes running(std::size_t s) const {
    const LeastMemory::Units::OfSegment& of = units_.segments[s];
    Bytes units = keeps_units_ ? of.kept : of.slices + of.running + last_kept(s);
    if (passes_ahead_ > 0) units += passes_ahead_ == 1 ? of.next_forward.front() : of.next_forward.back();
    const Bytes own = kept_[s] == Kept::all ? saved_[s].forward_peak : saved_[s].input;
    return units_.resident + gradients(saved_.size()) + below_[s] + units + own;
  }

  Bytes of_segment(std::size_t s) const {
    if (!units_.has_backward[s]) return {};
    Bytes most;
    if (kept_[s] == Kept::checkpointed) {
      most = of_recomputed(s, checkpointed_by(policy_, saved_[s]));
    } else {
      most = of_kept(s);
    }
    if (kept_[s] == Kept::unknown) {
      most = std::min(most, of_recomputed(s, saved_[s].full));
      for (const CheckpointedActivations& each : saved_[s].selective) most = std::min(most, of_recomputed(s, each));
    }
    return units_.resident + below_[s] + std::max(most, while_reduced(s));
  }

  /// Gradients of the segments above one, whose own begin: the reduction of the nearest is still under way. A unit that
  /// is on each rank whole may have nothing to reduce, so that an update within backward has freed it already.
  Bytes late_gradients(std::size_t s) const {
    const Bytes late = gradients(s + 2) + pieces(s + 1);
    return units_.shards == 1 ? std::min(late, gradients(s + 1)) : late;
  }

  /// What lives besides resident bytes and activations below, while backward of a segment runs that kept all it needs.
  Bytes of_kept(std::size_t s) const {
    return late_gradients(s) + gathered(s) + ahead(s) + input_of_before(s, saved_[s].holds_input) +
           peak_of(saved_[s].backward);
  }

  /// Likewise of one that is recomputed first. The reduction ends with that, or else with its backward.
  Bytes of_recomputed(std::size_t s, const CheckpointedActivations& activations) const {
    const Bytes input = input_of_before(s, activations.holds_input);
    const Bytes recomputing = late_gradients(s) + gathered(s) +
                              (job_.backward_prefetch == BackwardPrefetch::pre ? ahead(s) : Bytes{}) + input +
                              activations.recompute_peak;
    if (whole_) return recomputing;  // with it sums may become shards
    return std::max(recomputing, reduced(s) + gathered(s) + ahead(s) + input + peak_of(activations.backward));
  }

  /// Of the segment above, in backward of one that was recomputed. Of a unit of several layers nothing is reduced
  /// before its first one, so that a late end may take less than an early one.
  Bytes reduced(std::size_t s) const {
    const Bytes early = gradients(s + 1), late = late_gradients(s);
    if (open_.has(OpenChoice::reduce_finish)) return std::min(early, late);
    return finishes_late_ ? late : early;
  }

  /// After its backward, when all of its gradients are on their way.
  Bytes while_reduced(std::size_t s) const {
    if (whole_) return {};
    const LeastMemory::Units::OfSegment& of = units_.segments[s];
    Bytes units;  // that are there for the segments before it
    if (s > 0) units = keeps_units_ ? units_.segments[s - 1].kept : of.slices + ahead(s) + last_kept(s);
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
  std::optional<std::size_t> policy_;
  const std::vector<Kept>& kept_;    // by segment
  const std::vector<Bytes>& below_;  // likewise
  bool keeps_units_, keeps_last_, prefetches_;
  std::int64_t passes_ahead_;  // for which forward passes gather units
  bool finishes_late_;
  bool whole_ = false;
};

}  // namespace

const LeastMemory::Units& LeastMemory::units_of(const Graph& graph, const Job& job) {
  const std::string key = units_key(graph, job);
  const auto found = units_.find(key);
  if (found != units_.end()) return found->second;
  return units_.emplace(key, make_units(graph, job)).first->second;
}

LeastMemory::Parts LeastMemory::parts_of(const Graph& graph, const Job& job, OpenChoices open) {
  if (job.runtime != Runtime::vramfit) return {};
  return {.units = &units_of(graph, job),
          .saved = open.has(OpenChoice::micro_batch) ? nullptr : &stages_->saved_of(graph, job)};
}

const LeastMemory::HeldActivations& LeastMemory::held_by(const Parts& parts, const Graph& graph, const Job& job,
                                                         OpenChoices open) const {
  HeldActivations::Key key{.is_open = open.has(OpenChoice::checkpointing)};
  if (!key.is_open) {
    key.checkpointing = job.checkpointing.index();
    if (const auto* nth = std::get_if<EveryNth>(&job.checkpointing)) key.every = nth->n;
    key.policy = policy_of(job);
  }
  if (const Offload offload = offload_of(job); offload.activations) key.leave_every = offload.every;
  std::deque<HeldActivations>& known = held_[parts.saved];
  const auto found = std::ranges::find(known, key, &HeldActivations::key);
  if (found != known.end()) return *found;
  const std::vector<bool>& has_backward = parts.units->has_backward;
  HeldActivations& made = known.emplace_back();
  made.key = key;
  made.kept = kept_by(graph, job, has_backward, key.is_open);
  made.below = held_below(*parts.saved, made.kept, segments_that_leave(job, graph, has_backward), policy_of(job));
  return made;
}

Bytes LeastMemory::requested(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const {
  if (parts.units == nullptr) return {};
  const Units& units = *parts.units;
  const Bytes ropes = job.sequence * units.rope;
  if (open.has(OpenChoice::micro_batch)) return ropes + units.resident + while_updated(units, job);
  Moments moments(units, *parts.saved, held_by(parts, graph, job, open), job, open);
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

Bytes LeastMemory::host(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const {
  if (parts.units == nullptr) return {};
  const Units& units = *parts.units;
  const bool may_keep_sums = open.has(OpenChoice::accumulate) || job.accumulate == Accumulate::unsharded;
  const bool sums_once =
      open.has(OpenChoice::micro_batch) || job.accumulation == 1 || (may_keep_sums && units.shards > 1);
  const Bytes of_units = units.host + (sums_once ? Bytes{} : units.host_sums);
  if (parts.saved == nullptr || !offload_of(job).activations) return of_units;
  Bytes left;
  for (const Bytes each : leaving_activations(*parts.saved, graph, job, units.has_backward, open)) left += each;
  return of_units + left;
}

bool LeastMemory::is_too_much(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open,
                              Bytes least) const {
  const bool has_budget = cluster_.host_memory.n > 0;
  if (has_budget && exceeds_host_memory(cluster_.cards_per_node * host(parts, graph, job, open), cluster_)) return true;
  const Bytes outside = this->outside(graph, job);
  return exceeds_card(least - outside, outside, job, cluster_);
}

}  // namespace vramfit
