#include "estimator/time/rates.h"

#include <algorithm>
#include <numeric>

namespace vramfit {

namespace {

double attention_share(const Device& device, const Costs& costs) {
  if (device.kind == DeviceKind::cpu) return costs.cpu_attention;
  const auto row = std::ranges::find_if(costs.fused_attention, [&](const Costs::FusedAttention& each) {
    return device.compute_capability >= each.from_compute_capability;
  });
  return row->share;
}

}  // namespace

Rates::Rates(const Cluster& cluster, const Costs& costs)
    : cluster_(cluster), costs_(costs), attention_(attention_share(cluster.card.device, costs)) {}

double Rates::flops(const Work& work) const {
  const Card& card = cluster_.card;
  const double share = work.unit == Work::Unit::attention ? attention_ : costs_.products;
  if (work.dtype == Dtype::f32) return card.fp32_flops * share;
  if (work.dtype == Dtype::f8_e4m3 || work.dtype == Dtype::f8_e5m2) {
    return card.bf16_flops * share * costs_.fp8_speedup;
  }
  // A card without bf16 units runs bf16 at its fp32 rate (the catalog's 16-bit rate is then fp16's); a CPU without them
  // converts first.
  const bool has_units = card.bf16 || work.dtype == Dtype::f16;
  const double converted = cluster_.is_cpu() && !card.device.onednn_bf16 ? costs_.cpu_converted_bf16 : 1;
  return (has_units ? card.bf16_flops : card.fp32_flops) * share * converted;
}

double Rates::seconds(const Work& work) const {
  if (work.unit == Work::Unit::host_link) return work.bytes / (cluster_.card.pcie_bandwidth * costs_.link);
  const double by_bytes = work.bytes / (cluster_.card.memory_bandwidth * costs_.memory);
  return work.flops > 0 ? std::max(work.flops / flops(work), by_bytes) : by_bytes;
}

double Rates::bandwidth(const program::Group& group) const {
  const double link = cluster_.card.link_bandwidth * costs_.link;
  const std::int64_t cards = cluster_.cards_per_node, span = group.members * group.stride;
  if (span <= cards && cards % span == 0) return link;
  // Across nodes each member on a node has a rail of its own, and the node with the fewest of them sets the pace.
  const std::int64_t on_a_node = std::max<std::int64_t>(1, std::gcd(span, cards) / group.stride);
  return std::min(link, static_cast<double>(on_a_node) * cluster_.network_bandwidth * costs_.network);
}

double Rates::seconds(const program::Start& start, const program::Group& group) const {
  using program::Collective;
  if (group.members <= 1) return 0;
  const auto n = static_cast<double>(group.members);
  const bool is_transfer = start.collective == Collective::send || start.collective == Collective::receive;
  const Bytes bytes = start.expected.n > 0 ? start.expected : start.bytes;
  const double sent = static_cast<double>(bytes.n) * (is_transfer ? 1 : (n - 1) / n);
  const double once = sent / bandwidth(group) + costs_.collective_seconds;
  return start.collective == Collective::all_reduce ? 2 * once : once;
}

}  // namespace vramfit
