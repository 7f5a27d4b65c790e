// Whatever is added up here is in the program of every schedule: the blocks of each micro-batch, of each unit at least
// one gather a micro-batch and a second one where no policy spares it, the reductions and the update. The streams do
// one thing after the other, so none is done before the sum of what it is given. What is left out can only lower the
// bound.
#include "estimator/time/least_seconds.h"

#include <algorithm>
#include <utility>

#include "estimator/job_keys.h"
#include "program/lowering/host.h"
#include "program/lowering/unit.h"
#include "program/optimizers/optimizers.h"
#include "program/schedules/schedule.h"
#include "program/stages/trainable.h"
#include "program/stages/wrapping.h"

namespace vramfit {

namespace {

/// Beyond 2^53 ticks (2.5 hours) sums are rounded.
constexpr double kRounding = 1 - 1e-9;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

LeastSeconds::UnitTimes& LeastSeconds::UnitTimes::operator+=(const UnitTimes& more) {
  runs.then(more.runs);
  collectives += more.collectives;
  launches += more.launches;
  copies_in += more.copies_in;
  copies_out += more.copies_out;
  return *this;
}

/// Lowers what units do by themselves, one thing after the other, and times it.
class LeastSeconds::UnitsMaker {
 public:
  UnitsMaker(const Graph& graph, const Job& job, const Cluster& cluster, const WorkTimer& timer)
      : graph_(graph),
        job_(job),
        timer_(timer),
        layout_(lay_out_units(graph, job)),
        trainable_(trainable_parameters(graph, job)),
        host_(writer_, labels_, tokens_, cluster.card.device.kind, offload_of(job)),
        inputs_{
            graph,   job.precision, layout_, optimizer_named(job.optimizer), cluster.card.device.kind, writer_, labels_,
            tokens_, unit_views_,   host_} {
    units_.reserve(layout_.units.size());
    for (std::size_t u = 0; u < layout_.units.size(); ++u) units_.emplace_back(inputs_, static_cast<int>(u));
  }

  Units make() {
    Units result;
    result.has_backward = segments_with_backward(graph_, job_);
    for (program::UnitLowering& unit : units_) unit.load({});
    host_.load_staging(layout_, true);
    take();
    gather(result);
    result.first_reductions = reductions(result.last_wait);
    result.later_reductions = reductions(result.last_wait);
    for (program::UnitLowering& unit : units_) update(unit);
    result.update = take();
    writer_.be_quiet(true);
    return result;
  }

 private:
  /// Of what was written since the last time.
  UnitTimes take() {
    UnitTimes times;
    const program::Code& code = writer_.code();
    for (; taken_ < code.instructions.size(); ++taken_) {
      if (const auto* run = std::get_if<program::Run>(&code.instructions[taken_])) {
        const Kernels kernels = timer_.kernels_of(*run, code);
        if (run->stream == Stream::compute) times.runs.then(kernels);
        if (run->stream == Stream::host) times.launches += kernels.compute;
        if (run->stream == Stream::to_device) times.copies_in += kernels.compute;
        if (run->stream == Stream::to_host) times.copies_out += kernels.compute;
      }
      if (const auto* start = std::get_if<program::Start>(&code.instructions[taken_])) {
        times.collectives += timer_.of(*start, {layout_.shards, 1});
        times.launches += timer_.launch();
      }
    }
    return times;
  }

  void update(program::UnitLowering& unit) {
    if (!host_.offload().states) return unit.update({}, {});
    if (const program::Held gradient = unit.left_gradient()) return unit.update_on_host(gradient, {}, {});
    if (!unit.gradient_shard()) return;
    const program::Held& staging = host_.next_staging();
    unit.send_gradient(staging);
    unit.drop_gradient();
    unit.update_on_host(staging, {}, {});
  }

  /// How long the compute stream waits at least for collectives of a segment's units: with several, what one of them
  /// runs overlaps with the collectives of another.
  double wait_of(std::size_t segment, const UnitTimes& times) const {
    if (layout_.units_of_segment[segment].size() == 1) return times.collectives;
    return std::max(0.0, times.collectives - times.runs.compute);
  }

  /// Segment by segment, as a forward pass does without prefetch.
  void gather(Units& result) {
    for (std::size_t s = 0; s < graph_.segments.size(); ++s) {
      for (const int unit : layout_.units_of_segment[s]) units_[at(unit)].wait();
      const UnitTimes own = take();
      if (s == 0) result.first_wait = wait_of(s, own);
      result.all_waits += wait_of(s, own);
      result.gathers += own;
      if (is_gathered_again(result, s)) result.regathers += own;
    }
  }

  /// Whether the units of a block are certainly dropped after its forward pass and gathered whole for its backward
  /// pass.
  bool is_gathered_again(const Units& units, std::size_t segment) const {
    if (layout_.shards == 1 || !is_block(segment)) return false;
    if (std::holds_alternative<ReshardGroups>(job_.reshard)) return false;  // among fewer ranks
    if (!units.has_backward[segment] || !reads_weights_in_backward(graph_.segments[segment])) return false;
    return std::ranges::all_of(layout_.units_of_segment[segment], [&](int unit) {
      return layout_.units[at(unit)].name != kRootUnit && uses(unit) == 1 &&
             !is_kept_for_backward(job_, layout_, last_block_, unit);
    });
  }
  bool is_block(std::size_t segment) const { return graph_.segments[segment].role == SegmentRole::block; }
  /// In how many segments.
  std::ptrdiff_t uses(int unit) const {
    return std::ranges::count_if(layout_.units_of_segment, [&](const std::vector<int>& units) {
      return std::ranges::find(units, unit) != units.end();
    });
  }

  /// After the backward pass of each segment, from the last to the first.
  UnitTimes reductions(double& last_wait) {
    UnitTimes all;
    for (std::size_t s = graph_.segments.size(); s-- > 0;) {
      const std::vector<Op>& ops = graph_.segments[s].ops;
      for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
        for (const ParameterUse& use : op->parameters) {
          if (trainable_[at(use.parameter)]) unit_of(use).home(op->kind, use);
        }
      }
      for (const int unit : layout_.units_of_segment[s]) units_[at(unit)].reduce();
      for (const int unit : layout_.units_of_segment[s]) units_[at(unit)].finish();
      if (s == 0) host_.land();
      const UnitTimes own = take();
      if (own.collectives > 0) last_wait = wait_of(s, own);
      all += own;
    }
    return all;
  }

  program::UnitLowering& unit_of(const ParameterUse& use) {
    return units_[at(layout_.unit_of_parameter[at(use.parameter)])];
  }

  const Graph& graph_;
  const int last_block_ = last_block(graph_);
  const Job& job_;
  const WorkTimer& timer_;
  UnitLayout layout_;
  std::vector<bool> trainable_;
  program::Writer writer_;  // outlives what it handed out
  program::Labels labels_{false};
  program::Views views_{false};
  program::UnitViews unit_views_{views_, layout_, {}};
  int tokens_ = 0;
  program::HostSide host_;
  program::UnitsInputs inputs_;
  std::vector<program::UnitLowering> units_;
  std::size_t taken_ = 0;  // instructions
};

const LeastSeconds::Units& LeastSeconds::units_of(const Graph& graph, const Job& job) {
  const std::string key = units_key(graph, job);
  const auto known = units_.find(key);
  if (known != units_.end()) return known->second;
  return units_.emplace(key, UnitsMaker(graph, job, cluster_, timer_).make()).first->second;
}

Kernels LeastSeconds::kernels_of(const std::vector<TapeAction>& actions, const SegmentTape& tape) const {
  Kernels kernels;
  for (const TapeAction& action : actions) {
    const bool is_backward = action.what == TapeAction::Do::backward;
    if (!is_backward && action.what != TapeAction::Do::run) continue;
    const OpWork& work = tape.rules[at(action.op)].work;
    for (const Work& each : is_backward ? work.backward : work.forward) kernels.then(timer_.kernels_of(each));
  }
  return kernels;
}

const std::vector<LeastSeconds::SegmentTimes>& LeastSeconds::segments_of(const Graph& graph, const Job& job) {
  const std::string key = ops_key(graph, job);
  const auto known = segments_.find(key);
  if (known != segments_.end()) return known->second;
  std::vector<SegmentTimes> times;
  std::map<const SegmentTape*, std::size_t> timed;  // with the first segment of each
  for (const auto& tape : make_shared_tapes(tape_inputs(graph, job, cluster_.card.device))) {
    const auto [like, is_new] = timed.try_emplace(tape.get(), times.size());
    if (!is_new) {
      times.push_back(times[like->second]);
      continue;
    }
    times.push_back({.forward = kernels_of(tape->forward, *tape),
                     .recompute = kernels_of(tape->full.recompute, *tape),
                     .backward = kernels_of(tape->backward, *tape),
                     .recompute_selective = {}});
    for (const CheckpointedTape& each : tape->selective) {
      times.back().recompute_selective.push_back(kernels_of(each.recompute, *tape));
    }
  }
  return segments_.emplace(key, std::move(times)).first->second;
}

LeastSeconds::Parts LeastSeconds::parts_of(const Graph& graph, const Job& job, OpenChoices open) {
  if (job.runtime != Runtime::vramfit) return {};
  if (open.has(OpenChoice::micro_batch) || open.has(OpenChoice::loss)) return {};
  return {.units = &units_of(graph, job), .segments = &segments_of(graph, job)};
}

Kernels LeastSeconds::blocks_of(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) {
  const std::vector<SegmentTimes>& segments = *parts.segments;
  const std::vector<bool>& has_backward = parts.units->has_backward;
  const bool may_keep_all = open.has(OpenChoice::checkpointing);
  std::optional<std::size_t> policy;
  if (is_selective(job.checkpointing)) policy = policy_number(job.checkpointing);
  Kernels blocks;
  for (const SegmentTimes& segment : segments) blocks.then(segment.forward);
  for (std::size_t s = segments.size(); s-- > 0;) {
    if (!has_backward[s]) break;
    if (!may_keep_all && is_checkpointed(job, graph, has_backward, static_cast<int>(s))) {
      blocks.then(policy ? segments[s].recompute_selective.at(*policy) : segments[s].recompute);
    }
    blocks.then(segments[s].backward);
  }
  return blocks;
}

double LeastSeconds::step_seconds(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) {
  if (parts.units == nullptr) return 0;
  const Units& units = *parts.units;
  const Kernels blocks = blocks_of(parts, graph, job, open);
  const auto times = static_cast<double>(job.accumulation);
  // Sums kept whole are reduced in the last micro-batch alone.
  const bool may_keep_sums = open.has(OpenChoice::accumulate) || job.accumulate == Accumulate::unsharded;
  const bool once = may_keep_sums && job.mesh.shard > 1;
  const double later = once ? 0 : times - 1;
  const bool prefetches = open.has(OpenChoice::prefetch) || job.forward_prefetch > 0;
  const auto sum = [&](double block, const auto& of) {
    return times * (block + of(units.gathers) + of(units.regathers)) + of(units.first_reductions) +
           later * of(units.later_reductions) + of(units.update);
  };
  // Updates within backward run beside the last reduction.
  const double last_wait = job.optimizer_in_backward ? 0 : units.last_wait;
  const double waits = times * (prefetches ? units.first_wait : units.all_waits) + (1 + later) * last_wait;
  const double host = sum(blocks.host, [](const UnitTimes& each) { return each.runs.host + each.launches; });
  const double compute = waits + sum(blocks.compute, [](const UnitTimes& each) { return each.runs.compute; });
  const double collectives = sum(0, [](const UnitTimes& each) { return each.collectives; });
  const double copies_in = sum(0, [](const UnitTimes& each) { return each.copies_in; });
  const double copies_out = sum(0, [](const UnitTimes& each) { return each.copies_out; });
  return kRounding * seconds_of_ticks(std::max({host, compute, collectives, copies_in, copies_out}));
}

}  // namespace vramfit
