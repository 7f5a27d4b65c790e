#include "estimator/op_time.h"

#include <algorithm>
#include <array>

#include "program/model_flops.h"
#include "program/ops/attention.h"
#include "program/ops/fp8.h"
#include "program/rule.h"

namespace vramfit {
namespace {

// Shares of a card's peak that large kernels reach.
constexpr double kProductEfficiency = 0.65;
constexpr double kMemoryEfficiency = 0.80;
constexpr double kLinkEfficiency = 0.80;
constexpr double kNetworkEfficiency = 0.85;

// Share of the peak of products that FlashAttention-2, which PyTorch brings, reaches, by compute capability from which
// it holds: it was written for 8.x and uses less of what came later.
struct AttentionShare {
  int capability;
  double share;
};
constexpr std::array<AttentionShare, 4> kAttentionShares{{{120, 0.66}, {100, 0.14}, {90, 0.31}, {0, 0.66}}};

// Q K^T and P V in forward; in backward Q K^T again, and a product for each of the gradients of V, P, Q and K.
constexpr double kAttentionBackward = 2.5;

// Products of FP8 factors are twice as fast as of bf16 ones on every card that makes them: NVIDIA's H100 data sheet
// (1979 against 989 TFLOPS, dense), and its Ada and Blackwell architecture papers.
constexpr double kFp8Speedup = 2;

double attention_share(const Device& device) {
  if (device.kind == DeviceKind::cpu) return kProductEfficiency;
  const auto* const row = std::ranges::find_if(
      kAttentionShares, [&](const AttentionShare& share) { return device.compute_capability >= share.capability; });
  return row->share;
}

double elements(const Segment& segment, int value, const BatchShape& shape) {
  return static_cast<double>(element_count(segment.values[static_cast<std::size_t>(value)], shape));
}

// Bytes an op reads and writes once: its inputs, outputs and parameters.
double op_bytes(const OpContext& context) {
  const Op& op = context.op;
  const auto width = static_cast<double>(dtype_bytes(context.precision.compute).n);
  double count = op.kind == OpKind::embedding ? 0 : used_parameter_elements(context.graph, op);
  for (const int value : op.inputs) count += elements(context.segment, value, context.shape);
  for (const int value : op.outputs) count += elements(context.segment, value, context.shape);
  return count * width;
}

// A kernel takes the longer of its FLOPs and its bytes.
void add_kernel(Work& work, double flops_seconds, double bytes_seconds, double launches) {
  (flops_seconds > bytes_seconds ? work.compute : work.memory) += std::max(flops_seconds, bytes_seconds);
  work.memory += launches * kLaunchSeconds;
}

// What attention composed of calls does besides: each score is written and read in fp32 by one call after the other,
// and every block of queries is as many launches (executor/ops/attention_math.cpp, forward; a softcap is two calls
// more).
struct Composed {
  double bytes = 0, launches = 0;
};

Composed composed_attention(const OpContext& context) {
  const Attributes& a = context.op.attributes;
  const double passes = a.softcap == 0 ? 9 : 13, calls = a.softcap == 0 ? 9 : 11;
  const auto batch = static_cast<double>(context.shape.batch), sequence = static_cast<double>(context.shape.sequence);
  const auto heads = static_cast<double>(a.heads), groups = static_cast<double>(a.kv_heads);
  const auto blocks =
      batch * heads / groups * static_cast<double>(ceil_div(context.shape.sequence, kMathAttentionRows));
  return {.bytes = 4 * passes * batch * heads * sequence * attended_rows(a, sequence), .launches = calls * blocks};
}

void add_attention(const OpContext& context, const Rates& rates, SegmentTime& time) {
  const double flops = forward_flops(context.graph, context.op, context.shape), bytes = op_bytes(context);
  if (attention_path(context) != AttentionPath::math) {
    add_kernel(time.forward, flops / rates.attention, bytes / rates.memory, 1);
    add_kernel(time.backward, kAttentionBackward * flops / rates.attention, 2 * bytes / rates.memory, 2);
    return;
  }
  const Composed composed = composed_attention(context);
  for (const auto& [work, passes] : {std::pair{&time.forward, 1.0}, std::pair{&time.backward, 2.0}}) {
    add_kernel(*work, passes * flops / rates.products, passes * bytes / rates.memory, passes);
    work->memory += passes * (composed.bytes / rates.memory + composed.launches * kLaunchSeconds);
  }
}

// Head and loss over chunks of rows, all of it in backward (executor/ops/linear_cross_entropy.cpp). Each chunk reads
// the weight twice, adds its product to the weight's whole gradient, and passes three times over its logits.
void add_chunked_loss(const OpContext& context, const Rates& rates, SegmentTime& time) {
  const Parameter& parameter =
      context.graph.parameters[static_cast<std::size_t>(context.op.parameters.front().parameter)];
  const auto width = static_cast<double>(dtype_bytes(context.precision.compute).n);
  const auto sum_width = static_cast<double>(dtype_bytes(context.precision.reduce).n);
  const auto weight = static_cast<double>(element_count(parameter));
  const auto vocabulary = static_cast<double>(parameter.shape[0]), hidden = static_cast<double>(parameter.shape[1]);
  const std::int64_t rows_of_chunk = ceil_div(context.tokens(), context.op.attributes.chunks);
  const auto chunks = static_cast<double>(ceil_div(context.tokens(), rows_of_chunk));
  const double rows = static_cast<double>(context.tokens()) / chunks;
  const double activations = rows * (vocabulary + hidden) * width;
  const double flops = chunks * 2 * rows * weight / rates.products;
  add_kernel(time.backward, 2 * flops, 2 * chunks * (weight * width + activations) / rates.memory, 2 * chunks);
  add_kernel(time.backward, flops, chunks * (2 * weight * sum_width + activations) / rates.memory, chunks);
  add_kernel(time.backward, 0, 3 * chunks * rows * vocabulary * width / rates.memory, 3 * chunks);
  add_kernel(time.backward, 0, weight * sum_width / rates.memory, 1);  // the gradient starts at zero
}

// Any other op; backward has two products for one, of input and of weight, and reads and writes as much twice.
void add_op(const OpContext& context, const Rates& rates, SegmentTime& time) {
  const bool is_cuda = context.device.kind == DeviceKind::cuda;
  const double speedup = is_cuda && multiplies_in_fp8(context) ? kFp8Speedup : 1;
  const double flops = forward_flops(context.graph, context.op, context.shape) / (rates.products * speedup);
  const double bytes = op_bytes(context) / rates.memory;
  const Fp8Casts casts = fp8_casts(context);
  for (const auto& [work, passes] : {std::pair{&time.forward, 1.0}, std::pair{&time.backward, 2.0}}) {
    add_kernel(*work, passes * flops, passes * bytes, passes);
    work->memory += passes * (casts.bytes / rates.memory + static_cast<double>(casts.launches) * kLaunchSeconds);
  }
}

}  // namespace

Rates rates_of(const Job& job, const Cluster& cluster) {
  const Card& card = cluster.card;
  const bool half = job.precision.compute != Dtype::f32;
  // A card without bf16 units runs bf16 at its fp32 rate (the catalog's 16-bit rate is then fp16's); a CPU without them
  // converts first.
  const bool has_units = card.bf16 || job.precision.compute == Dtype::f16;
  const double peak = half && has_units ? card.bf16_flops : card.fp32_flops;
  const double slowdown = cluster.is_cpu() && half && !card.device.onednn_bf16 ? 0.5 : 1.0;
  return {.products = peak * kProductEfficiency * slowdown,
          .attention = peak * attention_share(card.device) * slowdown,
          .memory = card.memory_bandwidth * kMemoryEfficiency,
          .link = card.link_bandwidth * kLinkEfficiency,
          .rail = cluster.network_bandwidth * kNetworkEfficiency};
}

SegmentTime segment_time(const Graph& graph, const Segment& segment, const Job& job, const Cluster& cluster) {
  const Rates rates = rates_of(job, cluster);
  SegmentTime time;
  for (const Op& op : segment.ops) {
    const OpContext context{.op = op,
                            .segment = segment,
                            .graph = graph,
                            .precision = job.precision,
                            .device = cluster.card.device,
                            .attention = job.attention,
                            .deterministic = job.deterministic,
                            .shape = {job.micro_batch, job.sequence}};
    if (op.kind == OpKind::attention) {
      add_attention(context, rates, time);
    } else if (op.kind == OpKind::linear_cross_entropy) {
      add_chunked_loss(context, rates, time);
    } else {
      add_op(context, rates, time);
    }
  }
  return time;
}

}  // namespace vramfit
