// docs/time-model.md derives these formulas and says where each constant comes from.
#include "estimator/time_model.h"

#include <algorithm>
#include <map>
#include <set>

#include "estimator/count.h"
#include "estimator/ops/attention.h"
#include "estimator/ops/fp8.h"
#include "estimator/rule.h"
#include "estimator/schedules/schedule.h"
#include "estimator/sharding.h"
#include "estimator/units_layout.h"

namespace vramfit {
namespace {

// Fractions of the card's peak that large kernels reach. Assumptions, to be replaced by measurements: see
// docs/time-model.md.
constexpr double kMatmulEfficiency = 0.65;
constexpr double kMemoryEfficiency = 0.80;
constexpr double kLinkEfficiency = 0.75;
constexpr double kOverlap = 0.80;  // share of compute during which a prefetched gather or a reduction makes progress

// FP8 products are twice as fast as bf16 ones on every card that supports them: NVIDIA's H100 data sheet
// (1979 against 989 TFLOPS, dense), and its Ada and Blackwell architecture papers.
constexpr double kFp8Speedup = 2;

// A kernel takes at least this long from one launch to the next; on CPU a call costs about the same.
constexpr double kLaunchSeconds = 5e-6;
constexpr double kCollectiveLatency = 20e-6;

struct Rates {
  double flops = 0, memory = 0;
  double link = 0, network = 0;  // between cards of a node, and of any two
};

Rates rates_of(const Job& job, const Cluster& cluster) {
  const Card& card = cluster.card;
  const bool half = job.precision.compute != Dtype::f32;
  // A card without bf16 units runs bf16 at its fp32 rate (the catalog's 16-bit rate is then fp16's); a CPU without them
  // converts first.
  const bool has_units = card.bf16 || job.precision.compute == Dtype::f16;
  const double peak = half && has_units ? card.bf16_flops : card.fp32_flops;
  const double slowdown = cluster.is_cpu() && half && !card.device.onednn_bf16 ? 0.5 : 1.0;
  const double within = card.link_bandwidth;
  const double network = cluster.nodes > 1 ? std::min(within, cluster.network_bandwidth) : within;
  return {.flops = peak * kMatmulEfficiency * slowdown,
          .memory = card.memory_bandwidth * kMemoryEfficiency,
          .link = within * kLinkEfficiency,
          .network = network * kLinkEfficiency};
}

double elements(const Segment& segment, int value, const BatchShape& shape) {
  return static_cast<double>(element_count(segment.values[static_cast<std::size_t>(value)], shape));
}

// Rows that a query attends to: all before it, at most a window of them.
double attended_rows(const Attributes& attributes, double sequence) {
  const double window = attributes.window > 0 ? std::min(static_cast<double>(attributes.window), sequence) : sequence;
  if (!attributes.causal) return window;
  return window - window * window / (2 * sequence);  // the first `window` queries see fewer
}

double used_parameter_elements(const Graph& graph, const Op& op) {
  if (op.parameters.empty()) return 0;
  const ParameterUse& use = op.parameters.front();
  const Parameter& parameter = graph.parameters[static_cast<std::size_t>(use.parameter)];
  const auto whole = static_cast<double>(element_count(parameter));
  if (use.count < 0) return whole;
  const std::size_t output_dim = op.attributes.transposed_weight ? 1 : 0;
  return whole * static_cast<double>(use.count) / static_cast<double>(parameter.shape.at(output_dim));
}

double op_flops(const Graph& graph, const Op& op, const BatchShape& shape) {
  const auto tokens = static_cast<double>(shape.batch) * static_cast<double>(shape.sequence);
  if (op.kind == OpKind::linear || op.kind == OpKind::linear_cross_entropy) {
    return 2 * tokens * used_parameter_elements(graph, op);
  }
  if (op.kind == OpKind::attention) {
    const Attributes& a = op.attributes;
    const auto width = static_cast<double>(a.heads) * static_cast<double>(a.head_dim);
    return 4 * tokens * attended_rows(a, static_cast<double>(shape.sequence)) * width;  // QK^T and PV
  }
  return 0;
}

// Bytes an op reads and writes once: its inputs, outputs and parameters.
double op_bytes(const Graph& graph, const Segment& segment, const Op& op, const Job& job, const BatchShape& shape) {
  const auto width = static_cast<double>(dtype_bytes(job.precision.compute).n);
  double count = op.kind == OpKind::embedding ? 0 : used_parameter_elements(graph, op);
  for (const int value : op.inputs) count += elements(segment, value, shape);
  for (const int value : op.outputs) count += elements(segment, value, shape);
  return count * width;
}

// The additional cost of attention composed of calls: each call reads and writes every score in fp32, and is a launch
// for every block of queries (executor/ops/attention_math.cpp, forward; a softcap adds two calls).
struct Composed {
  double bytes = 0, launches = 0;
};

Composed composed_attention(const OpContext& context) {
  const Op& op = context.op;
  if (op.kind != OpKind::attention || attention_path(context) != AttentionPath::math) return {};
  const Attributes& a = op.attributes;
  const double passes = a.softcap == 0 ? 9 : 13, calls = a.softcap == 0 ? 9 : 11;
  const auto batch = static_cast<double>(context.shape.batch), sequence = static_cast<double>(context.shape.sequence);
  const auto heads = static_cast<double>(a.heads), groups = static_cast<double>(a.kv_heads);
  const auto blocks =
      batch * heads / groups * static_cast<double>(ceil_div(context.shape.sequence, kMathAttentionRows));
  return {.bytes = 4 * passes * batch * heads * sequence * attended_rows(a, sequence), .launches = calls * blocks};
}

struct SegmentTime {
  double compute = 0, memory = 0;  // of one forward, seconds
  double total() const { return compute + memory; }
};

SegmentTime forward_time(const Graph& graph, const Segment& segment, const Job& job, const Cluster& cluster) {
  const Rates rates = rates_of(job, cluster);
  const BatchShape shape{job.micro_batch, job.sequence};
  SegmentTime time;
  for (const Op& op : segment.ops) {
    const OpContext context{.op = op,
                            .segment = segment,
                            .graph = graph,
                            .precision = job.precision,
                            .device = cluster.card.device,
                            .attention = job.attention,
                            .deterministic = job.deterministic,
                            .shape = shape};
    const double speedup = !cluster.is_cpu() && multiplies_in_fp8(context) ? kFp8Speedup : 1;
    const double flops = op_flops(graph, op, shape) / (rates.flops * speedup);
    const double bytes = op_bytes(graph, segment, op, job, shape) / rates.memory;
    (flops > bytes ? time.compute : time.memory) += std::max(flops, bytes) + kLaunchSeconds;
    const Composed composed = composed_attention(context);
    const Fp8Casts casts = fp8_casts(context);
    time.memory +=
        (composed.bytes + casts.bytes) / rates.memory + kLaunchSeconds * (composed.launches + casts.launches);
  }
  return time;
}

// Time of one micro-batch, computed from its instructions.
struct MicroBatch {
  double compute = 0, memory = 0, communication = 0, first_gather = 0;
  double sums = 0, last_sum = 0, busy_before_sums = 0;  // over replicas
};

class Clock {
 public:
  Clock(const Graph& graph, const Job& job, const Cluster& cluster)
      : job_(job),
        cards_per_node_(cluster.cards_per_node),
        rates_(rates_of(job, cluster)),
        layout_(lay_out_units(graph, job)) {
    for (const Segment& segment : graph.segments) segments_.push_back(forward_time(graph, segment, job, cluster));
    for (const Segment& segment : graph.segments) reduced_.push_back(reduced_elements(segment));
  }

  void run(const Instruction& i, MicroBatch& time) const {
    switch (i.what) {
      case Do::forward:
      case Do::recompute:
        add_segment(i.segment, 1, time);
        return;
      case Do::backward:
        add_segment(i.segment, 2, time);
        return;  // input and weight gradients: two products for one
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

  const UnitLayout& layout() const { return layout_; }

 private:
  static double size(Dtype dtype) { return static_cast<double>(dtype_bytes(dtype).n); }
  const Unit& unit(int index) const { return layout_.units[static_cast<std::size_t>(index)]; }

  // Bytes per element: a mask from a file is read along with the gradient; a drawn mask takes about 15 passes over 8
  // bytes, read and written (executor/gradient_mask.cpp, mask_by_calls).
  double mask_bytes(const Unit& unit) const {
    if (job_.gradient_mask == GradientMask::none) return 0;
    return 2 * size(unit.gradient) + (job_.gradient_mask == GradientMask::file ? 1.0 : 15.0 * 16);
  }

  void add_segment(int index, double passes, MicroBatch& time) const {
    const SegmentTime& segment = segments_[static_cast<std::size_t>(index)];
    time.compute += passes * segment.compute;
    time.memory += passes * segment.memory;
  }

  // Rings move (n - 1) / n of the data through every link for a gather or a reduce-scatter, twice that for both.
  double ring_seconds(double bytes, std::int64_t ranks, double link) const {
    if (ranks <= 1) return 0;
    const auto n = static_cast<double>(ranks);
    return bytes * (n - 1) / n / link + kCollectiveLatency;
  }

  // Neighbours in rank order, as shards and the groups of --reshard N are.
  double link_of(std::int64_t neighbours) const {
    const bool in_a_node = neighbours <= cards_per_node_ && cards_per_node_ % neighbours == 0;
    return in_a_node ? rates_.link : rates_.network;
  }

  // This rank's shard is cast into the gathered storage; a kept slice is copied.
  void add_gather(const Instruction& i, MicroBatch& time) const {
    const Unit& u = unit(i.unit);
    if (u.gathered_is_shard) return;
    const double own = i.in_group ? static_cast<double>(u.kept_elements) * 2 * size(u.compute)
                                  : static_cast<double>(u.shard_elements) * (size(u.storage) + size(u.compute));
    time.memory += own / rates_.memory;
    const std::int64_t ranks = i.in_group ? layout_.reshard_ranks : layout_.shards;
    const double bytes = static_cast<double>(u.gathered_elements) * size(u.compute);
    const double seconds = ring_seconds(bytes, ranks, link_of(ranks));
    if (time.first_gather == 0) time.first_gather = seconds;
    time.communication += seconds;
  }

  void add_slice(int index, MicroBatch& time) const {
    time.memory += static_cast<double>(unit(index).kept_elements) * 2 * size(unit(index).compute) / rates_.memory;
  }

  // By unit: elements of its parameters whose gradients a segment's backward makes.
  std::map<int, double> reduced_elements(const Segment& segment) const {
    std::map<int, double> elements;
    std::set<int> seen;
    for (const Op& op : segment.ops) {
      for (const ParameterUse& use : op.parameters) {
        const auto parameter = static_cast<std::size_t>(use.parameter);
        const int index = layout_.unit_of_parameter[parameter];
        const auto slot = static_cast<std::size_t>(layout_.slot_of_parameter[parameter]);
        const UnitParameter& p = unit(index).parameters[slot];
        if (p.trainable && seen.insert(use.parameter).second) elements[index] += static_cast<double>(p.padded_elements);
      }
    }
    return elements;
  }

  void add_reduction(const Instruction& i, MicroBatch& time) const {
    const Unit& u = unit(i.unit);
    const double elements = reduced_[static_cast<std::size_t>(i.segment)].at(i.unit);
    time.communication += ring_seconds(elements * size(u.reduce), layout_.shards, link_of(layout_.shards));
    time.memory += elements * (size(u.compute) + size(u.reduce)) / rates_.memory;
  }

  // Gradients are read, and the sums of earlier micro-batches read and written.
  void add_accumulation(const Instruction& i, MicroBatch& time) const {
    const double elements = reduced_[static_cast<std::size_t>(i.segment)].at(i.unit);
    time.memory += elements * (size(unit(i.unit).compute) + 2 * size(unit(i.unit).reduce)) / rates_.memory;
  }

  void add_replica_sum(const std::vector<int>& bucket, MicroBatch& time) const {
    double bytes = 0;
    for (const int index : bucket) {
      bytes += static_cast<double>(unit(index).trainable_elements) * size(unit(index).gradient);
    }
    if (time.sums == 0) time.busy_before_sums = time.compute + time.memory;
    time.last_sum = 2 * ring_seconds(bytes, job_.mesh.replicate, link_of(data_ranks(job_)));
    time.sums += time.last_sum;
  }

  const Job& job_;
  std::int64_t cards_per_node_;
  Rates rates_;
  UnitLayout layout_;
  std::vector<SegmentTime> segments_;
  std::vector<std::map<int, double>> reduced_;  // by segment
};

std::vector<Instruction> schedule_of(const Graph& graph, const Job& job, const UnitLayout& layout) {
  return make_schedule(
      {.job = job, .graph = graph, .layout = layout, .segment_has_backward = segments_with_backward(graph, job)});
}

void add_micro_batch(const MicroBatch& micro_batch, double times, bool prefetched, StepTime& time) {
  const double busy = micro_batch.compute + micro_batch.memory;
  const double hidden = prefetched ? std::min(micro_batch.communication, kOverlap * busy) : 0;
  // Sums hide behind what is left of the backward pass, the last of them behind nothing.
  const double hidden_sums =
      std::min(micro_batch.sums - micro_batch.last_sum, kOverlap * (busy - micro_batch.busy_before_sums));
  const double exposed =
      std::max(micro_batch.communication - hidden, micro_batch.first_gather) + micro_batch.sums - hidden_sums;
  time.compute_seconds += times * micro_batch.compute;
  time.memory_seconds += times * micro_batch.memory;
  time.communication_seconds += times * (micro_batch.communication + micro_batch.sums);
  time.exposed_communication_seconds += times * exposed;
}

}  // namespace

double forward_flops(const Graph& graph, const Op& op, const BatchShape& shape) { return op_flops(graph, op, shape); }

double forward_flops(const Graph& graph, const BatchShape& shape) {
  double flops = 0;
  for (const Segment& segment : graph.segments) {
    for (const Op& op : segment.ops) flops += op_flops(graph, op, shape);
  }
  return flops;
}

StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster) {
  const Clock clock(graph, job, cluster);
  // All micro-batches but the last take the same time.
  Job two = job;
  two.accumulation = std::min<std::int64_t>(job.accumulation, 2);
  std::vector<MicroBatch> micro_batches(static_cast<std::size_t>(two.accumulation));
  for (const Instruction& i : schedule_of(graph, two, clock.layout())) {
    const auto index = std::min(static_cast<std::size_t>(i.micro_batch), micro_batches.size() - 1);
    clock.run(i, micro_batches[index]);
  }
  const bool prefetched = job.backward_prefetch != BackwardPrefetch::none || job.forward_prefetch > 0;
  StepTime time;
  if (job.accumulation > 1) {
    add_micro_batch(micro_batches.front(), static_cast<double>(job.accumulation - 1), prefetched, time);
  }
  add_micro_batch(micro_batches.back(), 1, prefetched, time);
  time.memory_seconds += clock.optimizer_seconds(true);
  time.step_seconds = time.compute_seconds + time.memory_seconds + time.exposed_communication_seconds;
  return time;
}

}  // namespace vramfit
