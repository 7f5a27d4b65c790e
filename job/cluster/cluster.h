// What a job runs on: cards, nodes, links.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/confidence.h"
#include "job/cluster/device.h"

namespace vramfit {

/// One entry of configs/gpus.json, which gives the source of every number.
struct Card {
  std::string name;  // "H100-80GB"
  std::vector<std::string> aliases;
  std::string cuda_name;                                        // as CUDA reports it: "NVIDIA H100 80GB HBM3"
  Device device;                                                // compute capability, SM count
  Bytes memory;                                                 // what torch reports as total memory
  std::int64_t sold_as_gb = 0;                                  // the size it is sold as: 80
  double bf16_flops = 0, fp32_flops = 0, memory_bandwidth = 0;  // per second, dense; bytes per second
  double link_bandwidth = 0;     // bytes per second per direction to a card of the same node
  double pcie_bandwidth = 0;     // bytes per second per direction
  double network_bandwidth = 0;  // bytes per second per direction of the NICs usual for one card; 0: none is usual
  std::string network_origin;    // of that figure
  Bytes context;                 // CUDA context and loaded kernels, outside the allocator
  Bytes pytorch_context;         // the same under PyTorch's runtimes
  Bytes nccl;                    // one NCCL communicator, outside the allocator
  std::string outside_origin = "not measured on such a card";  // of the last three, in words; not kept in files
  bool bf16 = true;
};

struct Cluster {
  std::string text;  // as given: "8xH100-80GB"
  std::int64_t nodes = 1, cards_per_node = 1;
  Card card;
  double network_bandwidth = 0;    // bytes per second per direction and card across nodes; 0: unknown
  std::string network_origin;      // who says so; not kept in files
  Bytes host_memory;               // of a node; 0: not stated
  Confidence confidence;           // asked of upper bounds of the cards' memory, if any; not kept in files
  std::vector<std::string> notes;  // assumptions made while reading it
  std::int64_t cards() const { return checked_mul(nodes, cards_per_node); }
  bool is_cpu() const { return card.device.kind == DeviceKind::cpu; }
};

/// Parses `[NODESx]COUNTxCARD`; throws InputError with a suggestion.
Cluster parse_cluster(std::string_view text);

/// Reads `--network`: "400Gbps/card" (bits) or "50GB/s/node" (bytes), per direction. Throws InputError, also for a
/// cluster of one node, which has none.
void set_network(Cluster& cluster, std::string_view text);

/// The network as an assumption of a predicted time: its speed and origin; "" for one node.
std::string network_note(const Cluster& cluster);

/// The catalog, compiled in from configs/gpus.json.
const std::vector<Card>& card_catalog();

}  // namespace vramfit
