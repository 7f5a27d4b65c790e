// A card that does one unit of everything per second, so that works are their own durations: 1 byte of memory, 1 byte
// over the link or to the host, 1 FLOP in fp32 and 2 in 16 bits; launches and latencies take no time.
#pragma once

#include "estimator/time/costs.h"
#include "job/cluster/cluster.h"

namespace vramfit::testing {

inline Costs unit_costs() {
  return {.products = 1,
          .memory = 1,
          .link = 1,
          .network = 1,
          .cpu_attention = 1,
          .fused_attention = {{0, 0.5}},
          .fp8_speedup = 2,
          .cpu_converted_bf16 = 0.5,
          .launch_seconds = 0,
          .eager_call_seconds = 0,
          .collective_seconds = 0};
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
