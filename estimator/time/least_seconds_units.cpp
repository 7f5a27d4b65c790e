// Whatever is added up here is in the program of every schedule: the blocks of each micro-batch, of each unit at least
// one gather a micro-batch and a second one where no policy spares it, the reductions and the update. The streams do
// one thing after the other, so none is done before the sum of what it is given. What is left out can only lower the
// bound.
#include "estimator/time/least_seconds.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/numbers/index.h"
#include "estimator/least/job_keys.h"
#include "estimator/time/alike_segments.h"
#include "estimator/time/certain_gathers.h"
#include "estimator/time/unit_users.h"
#include "job/sharding/sharding.h"
#include "program/lowering/host.h"
#include "program/lowering/unit.h"
#include "program/lowering/update.h"
#include "program/optimizers/optimizers.h"
#include "program/schedules/schedule.h"
#include "program/stages/fp8_gradients.h"
#include "program/stages/offload.h"
#include "program/stages/trainable.h"
#include "program/stages/wrapping.h"

namespace vramfit {

LeastSeconds::UnitTimes& LeastSeconds::UnitTimes::operator+=(const UnitTimes& more) {
  runs.then(more.runs);
  collectives += more.collectives;
  launches += more.launches;
  on_host += more.on_host;
  copies_in += more.copies_in;
  copies_out += more.copies_out;
  return *this;
}

/// Lowers what units do by themselves, one thing after the other, and times it.
class LeastSeconds::UnitsMaker {
 public:
  UnitsMaker(const Graph& graph, const Job& job, const Cluster& cluster, const UnitLayout& layout,
             const WorkTimer& timer)
      : graph_(graph),
        groups_(program::groups_of(job.mesh, layout.reshard_ranks)),
        job_(job),
        timer_(timer),
        layout_(layout),
        trainable_(trainable_parameters(graph, job)),
        is_cuda_(cluster.card.device.kind == DeviceKind::cuda),
        host_(writer_, labels_, tokens_, cluster.card.device.kind, offload_of(job)),
        inputs_{graph,
                job.precision,
                layout_,
                optimizer_named(job.optimizer),
                cluster.card.device.kind,
                writer_,
                labels_,
                tokens_,
                unit_views_,
                host_,
                job.kernels} {
    find_alike();
    units_.reserve(layout_.units.size());
    for (std::size_t u = 0; u < layout_.units.size(); ++u) {
      const bool is_like_another = at(first_of_unit_[u]) != u;
      place_.push_back(is_like_another ? place_[at(first_of_unit_[u])] : units_.size());
      if (!is_like_another) units_.emplace_back(inputs_, static_cast<int>(u));
    }
    users_ = users_of_units(graph_, layout_);
  }

  Units make() {
    Units result;
    result.has_backward = segments_with_backward(graph_, trainable_);
    host_.load_codes(layout_);
    for (program::UnitLowering& unit : units_) unit.load({});
    host_.load_staging(layout_, true);
    take();
    gather(result);
    result.first_reductions = reductions(result, &SegmentUnits::first);
    result.later_reductions = reductions(result, &SegmentUnits::later);
    keep_gradients(result, &SegmentUnits::keep_first);
    keep_gradients(result, &SegmentUnits::keep_later);
    reductions(result, &SegmentUnits::all_kept);
    for (SegmentUnits& segment : result.segments) {  // the first ones of the step
      segment.all_kept.landing = segment.first.landing;
      segment.all_kept.last_landing = segment.first.last_landing;
    }
    update(result);
    clip(result);
    sum_over_ranks(result);
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
        if (run->stream == Stream::host) times.launches += kernels.compute, times.on_host += kernels.compute;
        if (run->stream == Stream::to_device) times.copies_in += kernels.compute, times.launches += kernels.host;
        if (run->stream == Stream::to_host) times.copies_out += kernels.compute, times.launches += kernels.host;
      }
      if (const auto* start = std::get_if<program::Start>(&code.instructions[taken_])) {
        const double taken = timer_.of(*start, groups_[static_cast<std::size_t>(start->axis)]);
        if (times.collectives == 0) times.first_collective = taken;
        times.collectives += taken;
        times.launches += timer_.launch();
      }
    }
    return times;
  }

  /// What goes through host memory depends on what went before it.
  void find_alike() {
    const Offload& offload = host_.offload();
    first_.resize(graph_.segments.size());
    first_of_unit_.resize(layout_.units.size());
    std::iota(first_.begin(), first_.end(), std::size_t{0});
    std::iota(first_of_unit_.begin(), first_of_unit_.end(), 0);
    if (offload.states || offload.gradients || offload.parameters) return;
    first_ = first_alike(graph_, layout_);
    for (std::size_t s = 0; s < first_.size(); ++s) {
      const std::vector<int>& units = layout_.units_of_segment[s];
      if (first_[s] != s) first_of_unit_[at(units.front())] = layout_.units_of_segment[first_[s]].front();
    }
  }
  /// Of alike ones, the first.
  program::UnitLowering& unit(int number) { return units_[place_[at(number)]]; }

  void update(Units& result) {
    std::vector<UnitTimes> times;
    for (program::UnitLowering& unit : units_) {
      update(unit);
      times.push_back(take());
    }
    for (const std::size_t place : place_) {
      if (times[place].on_host > 0) result.returning = times[place].copies_in;
      result.update += times[place];
    }
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

  static SegmentUnits::Gather gather_of(const UnitTimes& times) {
    return {.copies = times.runs,
            .arrivals = times.copies_in,
            .collectives = times.collectives,
            .launches = times.launches};
  }

  /// Segment by segment, as a forward pass does without prefetch.
  void gather(Units& result) {
    result.segments.resize(graph_.segments.size());
    result.most_ahead = most_ahead_that_is_certain(layout_.units_of_segment);
    const bool are_certain = result.most_ahead >= 0;
    std::vector<UnitTimes> own(graph_.segments.size());
    std::vector<UnitTimes> of_unit(layout_.units.size());
    for (std::size_t s = 0; s < graph_.segments.size(); ++s) {
      const std::vector<int>& units = layout_.units_of_segment[s];
      SegmentUnits& segment = result.segments[s];
      segment.has_one = units.size() == 1;
      const UnitUsers users = units.empty() ? UnitUsers{} : users_[at(units.front())];
      segment.begins_unit = are_certain ? !units.empty() && !is_as_before(layout_.units_of_segment, s)
                                        : users.are_own && users.first == s;
      segment.ends_unit = are_certain ? !units.empty() && !is_as_before(layout_.units_of_segment, s + 1)
                                      : users.are_own && users.last == s;
      if (first_[s] != s) {
        own[s] = own[first_[s]];
      } else {
        for (const int number : units) {
          unit(number).wait();
          const UnitTimes times = take();
          if (users_[at(number)].first == s) of_unit[at(number)] = times;
          if (users_[at(number)].first == s || (are_certain && segment.begins_unit)) own[s] += of_unit[at(number)];
        }
      }
      segment.gather = gather_of(own[s]);
      segment.reads_in_backward = reads_weights_in_backward(graph_.segments[s]);
      result.gathers += own[s];
      if (!is_gathered_again(result, s)) continue;
      if (layout_.reshard_ranks == 0) {
        segment.regather = result.segments[users.first].gather;
        result.regathers += own[users.first];
      } else {
        gather_from_slices(units.front(), segment, result);
      }
    }
  }

  void gather_from_slices(int number, SegmentUnits& segment, Units& result) {
    const auto [known, is_new] = from_slices_.try_emplace(first_of_unit_[at(number)]);
    auto& [slices, again] = known->second;
    if (is_new) {
      unit(number).reshard();
      slices = take();
      unit(number).wait();
      again = take();
    }
    segment.slices = slices.runs;
    segment.regather = gather_of(again);
    result.regathers += slices;
    UnitTimes apart = again;
    apart.collectives = 0;  // on a stream of their own
    result.regathers += apart;
  }

  /// Whether the units of a block are certainly dropped after its forward pass and gathered whole for its backward
  /// pass.
  bool is_gathered_again(const Units& units, std::size_t segment) const {
    if (layout_.shards == 1 || !is_block(segment)) return false;
    if (layout_.reshard_ranks > 0 && layout_.units_of_segment[segment].size() != 1) return false;
    if (!units.has_backward[segment] || !reads_weights_in_backward(graph_.segments[segment])) return false;
    return std::ranges::all_of(layout_.units_of_segment[segment], [&](int unit) {
      const UnitUsers& users = users_[at(unit)];
      return layout_.units[at(unit)].name != kRootUnit &&
             (users.count == 1 || (users.are_own && users.last == segment)) &&
             !is_kept_for_backward(job_, layout_, last_block_, unit);
    });
  }
  bool is_block(std::size_t segment) const { return graph_.segments[segment].role == SegmentRole::block; }

  /// After the backward pass of each segment, from the last to the first.
  UnitTimes reductions(Units& result, Reductions member) {
    struct Reduced {
      UnitTimes begun, finished;
    };
    std::vector<std::optional<Reduced>> known(graph_.segments.size());  // by first alike segment
    UnitTimes all;
    for (std::size_t s = graph_.segments.size(); s-- > 0;) {
      std::optional<Reduced>& reduced = known[first_[s]];
      if (!reduced) {
        reduced.emplace();
        const std::vector<int> units = backward(first_[s]);
        for (const int number : units) unit(number).reduce();
        reduced->begun = take();
        for (const int number : units) unit(number).finish();
        reduced->finished = take();
      }
      const auto& [begun, finished] = *reduced;
      if (s == 0) host_.land();
      const UnitTimes landed = take();
      result.segments[s].*member = {.pieces = begun.runs,
                                    .sums = finished.runs,
                                    .collectives = begun.collectives + finished.collectives,
                                    .launches = begun.launches - begun.on_host,
                                    .launches_behind = finished.launches - finished.on_host,
                                    .behind = begun.collectives - begun.first_collective + finished.collectives,
                                    .landing = finished.on_host,
                                    .leaving = finished.copies_out,
                                    .last_landing = landed.on_host};
      all += begun;
      all += finished;
      all += landed;
    }
    return all;
  }

  /// Returns the units of which it has gradients, in the segment's order.
  std::vector<int> backward(std::size_t s) {
    const std::vector<Op>& ops = graph_.segments[s].ops;
    std::vector<int> units;
    for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
      for (const ParameterUse& use : op->parameters) {
        if (!trainable_[at(use.parameter)]) continue;
        unit_of(use).home(op->kind, use);
        units.push_back(layout_.unit_of_parameter[at(use.parameter)]);
      }
    }
    std::vector<int> with_gradients = layout_.units_of_segment[s];
    std::erase_if(with_gradients, [&](int unit) { return std::ranges::find(units, unit) == units.end(); });
    return with_gradients;
  }

  /// Whole, for a later micro-batch.
  void keep_gradients(Units& result, Reductions member) {
    if (layout_.shards == 1) return;
    std::vector<std::optional<Kernels>> known(graph_.segments.size());  // by first alike segment
    for (std::size_t s = graph_.segments.size(); s-- > 0;) {
      std::optional<Kernels>& pieces = known[first_[s]];
      if (!pieces) {
        for (const int number : backward(first_[s])) unit(number).accumulate();
        pieces = take().runs;
      }
      result.segments[s].*member = {.pieces = *pieces, .sums = {}};
    }
  }

  /// Sums over replicas come in buckets, which takes longer than one of all gradients. Those of gradients in FP8 are
  /// left out.
  void sum_over_ranks(Units& result) const {
    Bytes bytes;
    for (const Unit& unit : layout_.units) bytes += gradient_shard_elements(unit) * dtype_bytes(unit.gradient);
    const auto all_reduce = [&](program::Axis axis, Bytes of) {
      const program::Start start{
          .collective = program::Collective::all_reduce, .axis = axis, .accesses = {}, .bytes = of};
      return timer_.of(start, groups_[static_cast<std::size_t>(axis)]);
    };
    if (job_.mesh.replicate > 1) result.replica_sums = all_reduce(program::Axis::replicate, bytes);
    if (layout_.shards > 1) result.norm = all_reduce(program::Axis::shard, Bytes{});
    if (data_ranks(job_) > 1) result.results = all_reduce(program::Axis::data, Bytes{});
  }

  /// The norm of all gradients. The host takes that of those it keeps.
  void clip(Units& result) {
    if (host_.offload().gradients) {
      for (const Unit& unit : layout_.units) {
        if (unit.trainable_elements == 0) continue;
        writer_.run({.kernel = program::Kernel::norm_rest, .stream = Stream::host}, {},
                    program::work_of_squares_on_host(unit));
      }
      result.clip = take();
      return;
    }
    for (const Unit& unit : layout_.units) {
      if (unit.fp8_gradients > 0) {
        const Work reading = work_of_fp8_reading(unit, is_cuda_ ? DeviceKind::cuda : DeviceKind::cpu, job_.kernels);
        result.clip.runs.then(timer_.kernels_of(reading));
      }
      for (const program::SquaresCalls& calls : program::calls_of_squares(unit.trainable_elements, is_cuda_)) {
        if (calls.elements == 0 || calls.times == 0) continue;
        result.clip.runs.then(timer_.kernels_of(program::work_of_squares(calls.elements, unit.gradient), calls.times));
      }
    }
    result.clip.runs.then(timer_.kernels_of(program::kDivisorWork));
  }

  program::UnitLowering& unit_of(const ParameterUse& use) { return unit(layout_.unit_of_parameter[at(use.parameter)]); }

  const Graph& graph_;
  std::array<program::Group, program::kAxes> groups_;  // by axis
  const int last_block_ = last_block(graph_);
  std::vector<UnitUsers> users_;  // by unit
  const Job& job_;
  const WorkTimer& timer_;
  const UnitLayout& layout_;
  std::vector<bool> trainable_;
  program::Writer writer_;  // outlives what it handed out
  program::Labels labels_{program::Labels::Kept::nothing};
  program::Views views_{false};
  program::UnitViews unit_views_{views_, layout_, {}};
  int tokens_ = 0;
  bool is_cuda_;
  program::HostSide host_;
  program::UnitsInputs inputs_;
  std::vector<std::size_t> first_;  // by segment: the first one that is like it
  std::vector<int> first_of_unit_;  // by unit: likewise
  std::vector<std::size_t> place_;  // by unit: that of the first alike one in `units_`
  std::vector<program::UnitLowering> units_;
  std::map<int, std::pair<UnitTimes, UnitTimes>> from_slices_;  // by first alike unit: slices, and gathering them
  std::size_t taken_ = 0;                                       // instructions
};

const LeastSeconds::Units& LeastSeconds::units_of(const Graph& graph, const Job& job) {
  const bool keeps_all = !sharding_named(job.sharding).reshard;  // else the policy says which are gathered again
  const std::string key = fmt::format("{} {} {}", units_key(graph, job), job.mesh.replicate,
                                      keeps_all ? Reshard{ReshardNever{}}.index() : job.reshard.index());
  const auto known = units_.find(key);
  if (known != units_.end()) return known->second;
  return units_.emplace(key, UnitsMaker(graph, job, cluster_, stages_->layout_of(graph, job), timer_).make())
      .first->second;
}

}  // namespace vramfit
