// docs/time-model.md derives these formulas and says where each constant comes from.
#include "estimator/time_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "estimator/job_keys.h"
#include "estimator/op_time.h"
#include "job/sharding.h"
#include "program/schedules/schedule.h"
#include "program/trainable.h"
#include "program/units_layout.h"

namespace vramfit {
namespace {

constexpr double kOverlap = 0.80;  // share of compute during which a prefetched gather or a reduction makes progress
constexpr double kCollectiveLatency = 20e-6;

// What a micro-batch does, whatever its rows: how often each segment runs, and what its units take of memory.
struct Runs {
  std::vector<int> forward, backward;  // by segment; recomputation is another forward
  double memory = 0;                   // seconds
};

// One micro-batch of a schedule.
struct MicroBatch {
  Runs all, before_sums;  // before_sums: until the first sum over replicas starts, if any does
  double communication = 0, first_gather = 0;
  double sums = 0, last_sum = 0;  // over replicas
};

// A layout, and what follows from it alone.
struct Units {
  UnitLayout layout;
  std::vector<std::map<int, double>> reduced;  // by segment and unit: elements whose gradients its backward makes
};

// Elements of a segment's parameters whose gradients its backward makes, by unit.
std::map<int, double> reduced_elements(const Segment& segment, const UnitLayout& layout) {
  std::map<int, double> elements;
  std::set<int> seen;
  for (const Op& op : segment.ops) {
    for (const ParameterUse& use : op.parameters) {
      const auto parameter = static_cast<std::size_t>(use.parameter);
      const int index = layout.unit_of_parameter[parameter];
      const auto slot = static_cast<std::size_t>(layout.slot_of_parameter[parameter]);
      const UnitParameter& p = layout.units[static_cast<std::size_t>(index)].parameters[slot];
      if (p.trainable && seen.insert(use.parameter).second) elements[index] += static_cast<double>(p.padded_elements);
    }
  }
  return elements;
}

Units units_of(const Graph& graph, const Job& job) {
  Units units{lay_out_units(graph, job), {}};
  for (const Segment& segment : graph.segments) units.reduced.push_back(reduced_elements(segment, units.layout));
  return units;
}

// Follows a schedule and adds up its micro-batches.
class Clock {
 public:
  Clock(const Job& job, const Cluster& cluster, const Units& units)
      : job_(job),
        cards_per_node_(cluster.cards_per_node),
        rates_(rates_of(job, cluster)),
        layout_(units.layout),
        reduced_(units.reduced) {}

  void run(const Instruction& i, MicroBatch& time) const {
    switch (i.what) {
      case Do::forward:
      case Do::recompute:
        ++time.all.forward[static_cast<std::size_t>(i.segment)];
        return;
      case Do::backward:
        ++time.all.backward[static_cast<std::size_t>(i.segment)];
        return;
      case Do::issue:
        add_gather(i, time);
        return;
      case Do::reshard:
        add_slice(i.unit, time);
        return;
      case Do::accumulate:
        add_accumulation(i, time);
        return;
      case Do::reduce:
        add_reduction(i, time);
        return;
      case Do::sum_replicas:
        add_replica_sum(i.bucket, time);
        return;
      case Do::begin:
      case Do::wait:
      case Do::release:
      case Do::finish:
      case Do::end:
      case Do::mask:
      case Do::clip:
      case Do::step:
        return;
    }
  }

  // Clip reads the gradients; AdamW reads gradient, parameter and two states and writes all but the gradient.
  double optimizer_seconds(bool clip) const {
    double bytes = 0;
    for (const Unit& unit : layout_.units) {
      const double each = (clip ? 2.0 : 1.0) * size(unit.gradient) + 2 * size(unit.storage) +
                          4 * size(job_.precision.state) + mask_bytes(unit);
      bytes += static_cast<double>(unit.trainable_elements) * each;
    }
    return bytes / rates_.memory + kLaunchSeconds * static_cast<double>(layout_.units.size());
  }

 private:
  static double size(Dtype dtype) { return static_cast<double>(dtype_bytes(dtype).n); }
  const Unit& unit(int index) const { return layout_.units[static_cast<std::size_t>(index)]; }

  // Bytes per element: a mask from a file is read along with the gradient; a drawn mask takes about 15 passes over 8
  // bytes, read and written (executor/gradient_mask.cpp, mask_by_calls).
  double mask_bytes(const Unit& unit) const {
    if (job_.gradient_mask == GradientMask::none) return 0;
    return 2 * size(unit.gradient) + (job_.gradient_mask == GradientMask::file ? 1.0 : 15.0 * 16);
  }

  // Rings move (n - 1) / n of the data through every link for a gather or a reduce-scatter, twice that for both.
  double ring_seconds(double bytes, std::int64_t ranks, double link) const {
    if (ranks <= 1) return 0;
    const auto n = static_cast<double>(ranks);
    return bytes * (n - 1) / n / link + kCollectiveLatency;
  }

  // Between `members` ranks, each `stride` after the one before. Across nodes each member on a node has a rail of its
  // own, and the node with the fewest of them sets the pace.
  double bandwidth(std::int64_t members, std::int64_t stride) const {
    const std::int64_t span = members * stride;
    if (span <= cards_per_node_ && cards_per_node_ % span == 0) return rates_.link;
    const std::int64_t on_a_node = std::max<std::int64_t>(1, std::gcd(span, cards_per_node_) / stride);
    return std::min(rates_.link, static_cast<double>(on_a_node) * rates_.rail);
  }

  // This rank's shard is cast into the gathered storage; a kept slice is copied.
  void add_gather(const Instruction& i, MicroBatch& time) const {
    const Unit& u = unit(i.unit);
    if (u.gathered_is_shard) return;
    const double own = i.in_group ? static_cast<double>(u.kept_elements) * 2 * size(u.compute)
                                  : static_cast<double>(u.shard_elements) * (size(u.storage) + size(u.compute));
    time.all.memory += own / rates_.memory;
    const std::int64_t ranks = i.in_group ? layout_.reshard_ranks : layout_.shards;
    const double bytes = static_cast<double>(u.gathered_elements) * size(u.compute);
    const double seconds = ring_seconds(bytes, ranks, bandwidth(ranks, 1));
    if (time.first_gather == 0) time.first_gather = seconds;
    time.communication += seconds;
  }

  void add_slice(int index, MicroBatch& time) const {
    time.all.memory += static_cast<double>(unit(index).kept_elements) * 2 * size(unit(index).compute) / rates_.memory;
  }

  void add_reduction(const Instruction& i, MicroBatch& time) const {
    const Unit& u = unit(i.unit);
    const double elements = reduced_[static_cast<std::size_t>(i.segment)].at(i.unit);
    time.communication += ring_seconds(elements * size(u.reduce), layout_.shards, bandwidth(layout_.shards, 1));
    time.all.memory += elements * (size(u.compute) + size(u.reduce)) / rates_.memory;
  }

  // Gradients are read, and the sums of earlier micro-batches read and written.
  void add_accumulation(const Instruction& i, MicroBatch& time) const {
    const double elements = reduced_[static_cast<std::size_t>(i.segment)].at(i.unit);
    time.all.memory += elements * (size(unit(i.unit).compute) + 2 * size(unit(i.unit).reduce)) / rates_.memory;
  }

  void add_replica_sum(const std::vector<int>& bucket, MicroBatch& time) const {
    double bytes = 0;
    for (const int index : bucket) {
      bytes += static_cast<double>(unit(index).trainable_elements) * size(unit(index).gradient);
    }
    if (time.sums == 0) time.before_sums = time.all;
    time.last_sum = 2 * ring_seconds(bytes, job_.mesh.replicate, bandwidth(job_.mesh.replicate, job_.mesh.shard));
    time.sums += time.last_sum;
  }

  const Job& job_;
  std::int64_t cards_per_node_;
  Rates rates_;
  const UnitLayout& layout_;
  const std::vector<std::map<int, double>>& reduced_;
};

// One of a job with one micro-batch; else two, as all but the last take the same time.
std::vector<MicroBatch> micro_batches_of(const Graph& graph, const Job& job, const Clock& clock,
                                         const UnitLayout& layout) {
  Job two = job;
  two.accumulation = std::min<std::int64_t>(job.accumulation, 2);
  const std::size_t segments = graph.segments.size();
  const Runs none{std::vector<int>(segments), std::vector<int>(segments), 0};
  std::vector<MicroBatch> micro_batches(static_cast<std::size_t>(two.accumulation), {.all = none, .before_sums = {}});
  for (const Instruction& i : make_schedule({.job = two,
                              .graph = graph,
                              .layout = layout,
                              .segment_has_backward = segments_with_backward(graph, two)})) {
    const auto index = std::min(static_cast<std::size_t>(i.micro_batch), micro_batches.size() - 1);
    clock.run(i, micro_batches[index]);
  }
  return micro_batches;
}

Work busy(const Runs& runs, const std::vector<SegmentTime>& segments) {
  Work sum{.compute = 0, .memory = runs.memory};
  for (std::size_t s = 0; s < runs.forward.size(); ++s) {
    const double forward = runs.forward[s], backward = runs.backward[s];
    sum.compute += forward * segments[s].forward.compute + backward * segments[s].backward.compute;
    sum.memory += forward * segments[s].forward.memory + backward * segments[s].backward.memory;
  }
  return sum;
}

void add_micro_batch(const MicroBatch& micro_batch, double times, const std::vector<SegmentTime>& segments,
                     bool prefetched, StepTime& time) {
  const Work all = busy(micro_batch.all, segments), before_sums = busy(micro_batch.before_sums, segments);
  const double seconds = all.compute + all.memory;
  const double hidden = prefetched ? std::min(micro_batch.communication, kOverlap * seconds) : 0;
  // Sums hide behind what is left of the backward pass, the last of them behind nothing.
  const double left = seconds - before_sums.compute - before_sums.memory;
  const double hidden_sums = std::min(micro_batch.sums - micro_batch.last_sum, kOverlap * left);
  const double exposed =
      std::max(micro_batch.communication - hidden, micro_batch.first_gather) + micro_batch.sums - hidden_sums;
  time.compute_seconds += times * all.compute;
  time.memory_seconds += times * all.memory;
  time.communication_seconds += times * (micro_batch.communication + micro_batch.sums);
  time.exposed_communication_seconds += times * exposed;
}

// What is made by `make` the first time that a key is asked for.
template <typename Value, typename Make>
const Value& kept(std::map<std::string, Value>& values, const std::string& key, const Make& make) {
  const auto found = values.find(key);
  return found != values.end() ? found->second : values.emplace(key, make()).first->second;
}

}  // namespace

struct StepTimer::Kept {
  const Cluster& cluster;
  std::map<std::string, Units> units;
  std::map<std::string, std::vector<MicroBatch>> micro_batches;
  std::map<std::string, std::vector<SegmentTime>> segments;
};

StepTimer::StepTimer(const Cluster& cluster) : kept_(std::make_unique<Kept>(Kept{cluster, {}, {}, {}})) {}
StepTimer::~StepTimer() = default;

StepTime StepTimer::time(const Graph& graph, const Job& job) {
  const Cluster& cluster = kept_->cluster;
  const std::string key = units_key(graph, job);
  const Units& units = kept(kept_->units, key, [&] { return units_of(graph, job); });
  const Clock clock(job, cluster, units);
  const auto& micro_batches = kept(kept_->micro_batches, key + "; " + schedule_key(job),
                                   [&] { return micro_batches_of(graph, job, clock, units.layout); });
  const auto& segments = kept(kept_->segments, ops_key(graph, job), [&] {
    std::vector<SegmentTime> times;
    for (const Segment& segment : graph.segments) times.push_back(segment_time(graph, segment, job, cluster));
    return times;
  });
  const bool prefetched = job.backward_prefetch != BackwardPrefetch::none || job.forward_prefetch > 0;
  StepTime time;
  if (job.accumulation > 1) {
    add_micro_batch(micro_batches.front(), static_cast<double>(job.accumulation - 1), segments, prefetched, time);
  }
  add_micro_batch(micro_batches.back(), 1, segments, prefetched, time);
  time.memory_seconds += clock.optimizer_seconds(true);
  time.step_seconds = time.compute_seconds + time.memory_seconds + time.exposed_communication_seconds;
  return time;
}

StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster) {
  return StepTimer(cluster).time(graph, job);
}

}  // namespace vramfit
