// A card that does one unit of everything per second, so that works are their own durations: 1 byte of memory, 1 byte
// over the link or to the host, 1 FLOP in fp32 and 2 in 16 bits; launches and latencies take no time.
#pragma once

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"

namespace vramfit::testing {

inline Efficiency unit_efficiency() {
  Efficiency efficiency;
  efficiency.fp8_speedup = 2;
  efficiency.converted_bf16 = 0.5;
  efficiency.attention = efficiency.attention_backward = {.share_64 = 0.5, .share_128 = 0.5, .half_length = 0};
  return efficiency;
}

inline Cluster unit_cluster(std::int64_t nodes, std::int64_t cards) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.cards_per_node = cards;
  Card& card = cluster.card;
  card.device.kind = DeviceKind::cuda;
  card.device.compute_capability = 80;
  card.fp32_flops = card.memory_bandwidth = card.link_bandwidth = card.pcie_bandwidth = 1;
  card.bf16_flops = 2;
  cluster.network_bandwidth = 0.25;
  return cluster;
}

}  // namespace vramfit::testing
