// What kernels and collectives reach of a card's peaks, and what launching them costs: configs/costs.json, which gives
// the origin of every number.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

struct Costs {
  double products = 0, memory = 0;  // shares of a card's FLOPs and of its memory bandwidth
  double link = 0, network = 0;     // shares of the bandwidth between cards of a node, and of its network adapters
  double cpu_attention = 0;         // share of a CPU's FLOPs
  /// Share of the FLOPs of products that fused attention reaches, from a compute capability on (9.0 is 90), highest
  /// first.
  struct FusedAttention {
    int from_compute_capability = 0;
    double share = 0;
  };
  std::vector<FusedAttention> fused_attention;
  double fp8_speedup = 1;         // products of FP8 factors against bf16 ones
  double cpu_converted_bf16 = 1;  // 16-bit products on a CPU without units for them, against fp32 ones
  double launch_seconds = 0;      // of the host, for each kernel
  double eager_call_seconds =
      0;  // of the host, for each call of PyTorch's library, with the launch of its first kernel
  double collective_seconds = 0;  // of each collective, whatever its size
};

/// Throws InputError "FILE: ..." for text of another form.
Costs parse_costs(std::string_view text, const std::string& file);

/// Those compiled in.
const Costs& costs();

}  // namespace vramfit
