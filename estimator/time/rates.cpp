#include "estimator/time/rates.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace vramfit {

namespace {

bool is_fp8(Dtype dtype) { return dtype == Dtype::f8_e4m3 || dtype == Dtype::f8_e5m2; }

/// Of a group: how many nodes it spans, and how many members it has on the node with the fewest.
struct Span {
  double nodes = 1;
  std::int64_t on_a_node = 1;
};

Span span_of(const program::Group& group, std::int64_t cards) {
  const std::int64_t span = group.members * group.stride;
  if (span <= cards && cards % span == 0) return {1, group.members};
  const std::int64_t on_a_node = std::max<std::int64_t>(1, std::gcd(span, cards) / group.stride);
  return {std::ceil(static_cast<double>(group.members) / static_cast<double>(on_a_node)), on_a_node};
}

}  // namespace

double Rates::peak_flops(Dtype dtype) const {
  const Card& card = cluster_.card;
  if (dtype == Dtype::f32) return card.fp32_flops;
  if (is_fp8(dtype)) return card.bf16_flops * efficiency_.fp8_speedup;
  // A card without bf16 units runs bf16 at its fp32 rate (the catalog's 16-bit rate is then fp16's); a CPU without them
  // converts first.
  const bool has_units = card.bf16 || dtype == Dtype::f16;
  const double converted = cluster_.is_cpu() && !card.device.onednn_bf16 ? efficiency_.converted_bf16 : 1;
  return (has_units ? card.bf16_flops : card.fp32_flops) * converted;
}

double Rates::product_share(Dtype dtype) const {
  if (dtype == Dtype::f32) return efficiency_.product_share_fp32;
  return is_fp8(dtype) ? efficiency_.product_share_fp8 : efficiency_.product_share;
}

/// Of a card whose multiprocessors compute one tile each, wave after wave: how much of what they do is wanted. The last
/// wave, and tiles over an edge, do the rest.
double Rates::wave_share(const WorkShape& shape) const {
  const double multiprocessors = cluster_.card.device.sm_count;
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns);
  if (multiprocessors == 0 || rows == 0 || columns == 0) return 1;
  double best = 0;
  for (const Efficiency::Tile& tile : efficiency_.tiles) {
    const double waves = std::ceil(std::ceil(rows / tile.rows) * std::ceil(columns / tile.columns) / multiprocessors);
    best = std::max(best, rows * columns / (waves * multiprocessors * tile.rows * tile.columns));
  }
  return best;
}

double Rates::memory_seconds(const Work& work, double share) const {
  return work.bytes / (cluster_.card.memory_bandwidth * share);
}

double Rates::product_seconds(const Work& work) const {
  const double flops = peak_flops(work.dtype) * product_share(work.dtype) * wave_share(work.shape);
  return static_cast<double>(work.launches) * efficiency_.product_start_seconds +
         std::max(work.flops / flops, memory_seconds(work, efficiency_.memory_share));
}

double Rates::attention_seconds(const Work& work, const Efficiency::Attention& attention) const {
  constexpr double kSmallHead = 64, kLargeHead = 128;
  const double between =
      std::clamp((static_cast<double>(work.shape.columns) - kSmallHead) / (kLargeHead - kSmallHead), 0.0, 1.0);
  const double share = attention.share_64 + between * (attention.share_128 - attention.share_64);
  const auto length = static_cast<double>(work.shape.rows);
  const double of_length = length > 0 ? length / (length + attention.half_length) : 1;
  return std::max(work.flops / (peak_flops(work.dtype) * share * of_length),
                  memory_seconds(work, efficiency_.memory_share));
}

double Rates::seconds(const Work& work) const {
  if (work.unit == Work::Unit::host_link) {
    return work.bytes / (cluster_.card.pcie_bandwidth * efficiency_.host_link_share);
  }
  return seconds_alone(work) / (efficiency_.*step_share_on(cluster_).value);
}

double Rates::seconds_alone(const Work& work) const {
  switch (work.unit) {
    case Work::Unit::product:
      return product_seconds(work);
    case Work::Unit::attention:
      return attention_seconds(work, efficiency_.attention);
    case Work::Unit::attention_backward:
      return attention_seconds(work, efficiency_.attention_backward);
    case Work::Unit::cudnn_attention:
      return attention_seconds(work, efficiency_.cudnn_attention);
    case Work::Unit::cudnn_attention_backward:
      return attention_seconds(work, efficiency_.cudnn_attention_backward);
    case Work::Unit::cast:
      return pass_seconds(work, efficiency_.cast_share);
    case Work::Unit::eager_cast:
      return pass_seconds(work, efficiency_.eager_cast_share);
    case Work::Unit::host_link:
    case Work::Unit::none:
      break;
  }
  return pass_seconds(work, efficiency_.memory_share);
}

double Rates::pass_seconds(const Work& work, double share) const {
  return static_cast<double>(work.launches) * efficiency_.memory_start_seconds + memory_seconds(work, share);
}

double Rates::seconds(const program::Start& start, const program::Group& group) const {
  using program::Collective;
  if (group.members <= 1) return 0;
  const Efficiency& e = efficiency_;
  const bool is_transfer = start.collective == Collective::send || start.collective == Collective::receive;
  const bool is_sum = start.collective == Collective::all_reduce;
  const Span span = span_of(group, cluster_.cards_per_node);
  const auto n = static_cast<double>(group.members);
  const Bytes bytes = start.expected.n > 0 ? start.expected : start.bytes;
  const double sent = static_cast<double>(bytes.n) * (is_transfer ? 1 : (n - 1) / n);
  const double link = cluster_.card.link_bandwidth;
  const auto on_a_node = static_cast<double>(span.on_a_node);
  double bandwidth = link * (is_sum && span.nodes == 1 ? e.link_share_all_reduce : e.link_share);
  if (span.nodes > 1) {
    // Each member on a node has a rail of its own, and the node with the fewest of them sets the pace.
    // In an exchange each member has a part for every other one, and what is for other nodes leaves by its own rail.
    const bool is_exchange = start.collective == Collective::all_to_all;
    const double rails = is_exchange ? (n - 1) / (n - on_a_node) : on_a_node;
    bandwidth = std::min(bandwidth, rails * cluster_.network_bandwidth * e.network_share);
  }
  const double steps = is_transfer ? 1 : n - 1, across = std::min(steps, span.nodes - 1);
  const double once = sent / bandwidth + (steps - across) * e.collective_step_seconds + across * e.network_step_seconds;
  return e.collective_base_seconds + (is_sum ? 2 * once : once);
}

}  // namespace vramfit
