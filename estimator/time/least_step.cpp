// The bound of a step: its micro-batches one after the other, and what follows them.
#include <algorithm>
#include <limits>
#include <optional>

#include "estimator/least/leaving_activations.h"
#include "estimator/time/least_seconds.h"
#include "program/lowering/host.h"
#include "program/schedules/schedule.h"
#include "program/stages/kept_values.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

/// Beyond 2^53 ticks (2.5 hours) sums are rounded.
constexpr double kRounding = 1 - 1e-9;
/// Copies of activations are rounded to ticks one by one; the shortest takes some ten thousand.
constexpr double kCopiesRounding = 1 - 1e-4;

/// Where the host needs a smaller part of the time that kernels take, it is ahead of them nearly always.
constexpr double kHostMatters = 3;

/// The passes of a job's micro-batches, and how long they take.
class Passes {
 public:
  Passes(const LeastSeconds::Units& units, const std::vector<SegmentTicks>& segments, const Job& job, OpenChoices open,
         bool follows_host)
      : units_(units), segments_(segments), job_(job), is_open_(open.has(OpenChoice::prefetch)) {
    order_.follows_host = follows_host;
    const Offload offload = offload_of(job);
    const bool are_ahead = job.mesh.shard > 1 || offload.parameters;  // else there is nothing to hide
    order_.has_groups = std::holds_alternative<ReshardGroups>(job.reshard);
    order_.is_exact = job.forward_prefetch <= units.most_ahead && !is_open_ && job.prefetch_limit == 0;
    order_.knows_copies = order_.is_exact && !open.has(OpenChoice::checkpointing);
    if (are_ahead) order_.forward_ahead = is_open_ ? kAllUnits : job.forward_prefetch;
    if (are_ahead) set_backward(is_open_ ? BackwardPrefetch::pre : job.backward_prefetch);
    order_.finishes_early = job.reduce_finish == ReduceFinish::early && !open.has(OpenChoice::reduce_finish);
    order_.finishes_at_once = job.mesh.shard == 1;
    order_.knows_finish =
        order_.finishes_at_once || !(open.has(OpenChoice::reduce_finish) || open.has(OpenChoice::checkpointing));
  }

  struct Ticks {
    double compute = 0;
    double host = 0;  // until all is launched, if the passes follow the host
  };
  /// Whether it is known in which order all kernels run.
  bool are_certain() const { return order_.is_exact && order_.knows_finish; }
  /// All micro-batches, and the sums over replicas.
  Ticks take_all() {
    Ticks all;
    if (job_.accumulation == 1) return ends(all, take_behind(all, &SegmentUnits::first));
    repeat(all, &SegmentUnits::first, 1);
    if (!order_.follows_host) {  // then all later ones are alike
      const MicroBatchTicks later = take(&SegmentUnits::later, 0);
      add(all, later, static_cast<double>(job_.accumulation - 2));
      return ends(all, later);
    }
    repeat(all, &SegmentUnits::later, job_.accumulation - 2);
    return ends(all, take_behind(all, &SegmentUnits::later));
  }
  /// Likewise, of two or more that keep whole gradients for the last one.
  Ticks take_all_keeping() {
    Ticks all;
    repeat(all, &SegmentUnits::keep_first, 1);
    repeat(all, &SegmentUnits::keep_later, job_.accumulation - 2);
    return ends(all, take_behind(all, &SegmentUnits::all_kept));
  }

 private:
  static void add(Ticks& all, const MicroBatchTicks& more, double times) {
    all.host = all.compute + (times - 1) * more.all + more.host;
    all.compute += times * more.all;
  }

  /// A micro-batch takes no less if the host is further behind when it begins. Where it is further ahead after one than
  /// before it, nothing is taken to be known of it in those that follow.
  void repeat(Ticks& all, Reductions reductions, std::int64_t times) {
    if (times == 0) return;
    const double ahead = all.host - all.compute;
    const MicroBatchTicks ticks = take(reductions, ahead);
    const bool falls_behind = !order_.follows_host || ticks.host - ticks.all >= ahead;
    add(all, ticks, falls_behind ? static_cast<double>(times) : 1);
    if (falls_behind || times == 1) return;
    add(all, take(reductions, kNever), static_cast<double>(times - 1));
  }
  Ticks ends(Ticks all, const MicroBatchTicks& last) const {
    return {.compute = all.compute + std::max(last.all, last.top_backward + units_.replica_sums),
            .host = all.compute + last.host};
  }

  MicroBatchTicks take_behind(const Ticks& all, Reductions reductions) {
    return take(reductions, all.host - all.compute);
  }
  MicroBatchTicks take(Reductions reductions, double host) {
    MicroBatchTicks ticks = least_micro_batch(segments_, units_.segments, order_, reductions, host);
    if (!is_open_ || order_.forward_ahead == 0) return ticks;
    set_backward(BackwardPrefetch::none);  // another order of collectives
    const MicroBatchTicks late = least_micro_batch(segments_, units_.segments, order_, reductions, host);
    set_backward(BackwardPrefetch::pre);
    return {.all = std::min(ticks.all, late.all),
            .top_backward = std::min(ticks.top_backward, late.top_backward),
            .host = std::min(ticks.host, late.host)};
  }

  static constexpr std::int64_t kAllUnits = std::numeric_limits<std::int64_t>::max();

  void set_backward(BackwardPrefetch prefetch) {
    order_.backward_ahead = prefetch == BackwardPrefetch::none ? 0 : 1;
    order_.is_before_recompute = prefetch == BackwardPrefetch::pre;
  }

  const LeastSeconds::Units& units_;
  const std::vector<SegmentTicks>& segments_;
  const Job& job_;
  bool is_open_;
  PassOrder order_;
};

}  // namespace

Kernels LeastSeconds::blocks_of(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open,
                                std::vector<SegmentTicks>& segments) {
  const std::vector<SegmentTimes>& times = *parts.segments;
  const std::vector<bool>& has_backward = parts.units->has_backward;
  const bool may_keep_all = open.has(OpenChoice::checkpointing);
  std::optional<std::size_t> policy;
  if (is_selective(job.checkpointing)) policy = policy_number(job.checkpointing);
  Kernels blocks;
  segments.resize(times.size());
  for (std::size_t s = 0; s < times.size(); ++s) {
    blocks.then(times[s].forward);
    segments[s] = {.forward = times[s].forward, .recompute = {}, .backward = {}, .has_backward = has_backward[s]};
  }
  for (std::size_t s = times.size(); s-- > 0;) {
    if (!has_backward[s]) break;
    if (!may_keep_all && is_checkpointed(job, graph, has_backward, static_cast<int>(s))) {
      const Kernels& recompute = policy ? times[s].recompute_selective.at(*policy) : times[s].recompute;
      blocks.then(recompute);
      segments[s].recompute = recompute;
    }
    blocks.then(times[s].backward);
    segments[s].backward = times[s].backward;
  }
  return blocks;
}

double LeastSeconds::add_copies(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open,
                                std::vector<SegmentTicks>& segments) const {
  if (parts.saved == nullptr) return 0;
  const std::vector<Bytes> leaving = leaving_activations(*parts.saved, graph, job, parts.units->has_backward, open);
  double all = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (leaving[s].n == 0) continue;
    const Work work = program::work_of_copy(leaving[s], true);
    all += segments[s].leaving = kCopiesRounding * timer_.kernels_of(work).compute;
  }
  return all;
}

double LeastSeconds::step_seconds(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const {
  if (parts.units == nullptr) return 0;
  const Units& units = *parts.units;
  std::vector<SegmentTicks> segments;
  const Kernels blocks = blocks_of(parts, graph, job, open, segments);
  const double copied = add_copies(parts, graph, job, open, segments);
  const auto times = static_cast<double>(job.accumulation);
  const bool clips = (clips_ && !job.optimizer_in_backward) || scales_loss(job);
  // Sums kept whole are reduced in the last micro-batch alone.
  const bool may_keep_sums = open.has(OpenChoice::accumulate) || job.accumulate == Accumulate::unsharded;
  const bool may_keep = may_keep_sums && job.mesh.shard > 1 && job.accumulation > 1;
  const bool once = may_keep;
  const double later = once ? 0 : times - 1;
  const auto sum_of_passes = [&](double block, const auto& of) {
    return times * (block + of(units.gathers) + of(units.regathers)) + of(units.first_reductions) +
           later * of(units.later_reductions);
  };
  const auto sum = [&](double block, const auto& of) { return sum_of_passes(block, of) + of(units.update); };
  const auto of_host = [](const UnitTimes& each) { return each.runs.host + each.launches; };
  const double host = sum(blocks.host, of_host) + (clips ? units.clip.on_host : 0);
  const double compute = sum(blocks.compute, [](const UnitTimes& each) { return each.runs.compute; });
  const double collectives = sum(0, [](const UnitTimes& each) { return each.collectives; });
  const double copies_in = sum(copied, [](const UnitTimes& each) { return each.copies_in; });
  const double copies_out = sum(copied, [](const UnitTimes& each) { return each.copies_out; });

  const double host_of_passes = sum_of_passes(blocks.host, of_host);
  const auto waited_for = [&](bool follows_host) {
    Passes passes(units, segments, job, open, follows_host);
    Passes::Ticks waited = may_keep ? passes.take_all_keeping() : passes.take_all();
    if (may_keep && open.has(OpenChoice::accumulate)) {
      const Passes::Ticks reduced = passes.take_all();
      waited = {.compute = std::min(waited.compute, reduced.compute), .host = std::min(waited.host, reduced.host)};
    }
    // What follows the passes is launched behind all that they launch.
    waited.host = std::max(waited.host, host_of_passes);
    waited.compute = std::max(waited.compute, host_of_passes);
    const auto run = [&](const Kernels& kernels) {
      waited.compute = std::max(waited.compute + kernels.compute, waited.host + kernels.launched);
      waited.host += kernels.host;
    };
    if (clips) {
      run(units.clip.runs);
      waited.compute += units.clip.on_host + units.norm;
    }
    // The host updates what it keeps once all gradients are there.
    if (!job.optimizer_in_backward) {
      run(units.update.runs);
      waited.compute += units.update.on_host + units.returning;
    }
    return waited.compute + units.results;
  };
  const bool follows_host = !cluster_.is_cpu() && kHostMatters * host > compute;
  double waited = waited_for(follows_host);
  if (follows_host && !Passes(units, segments, job, open, true).are_certain())
    waited = std::max(waited, waited_for(false));
  return kRounding * seconds_of_ticks(std::max({host, compute, waited, collectives, copies_in, copies_out}));
}

}  // namespace vramfit
