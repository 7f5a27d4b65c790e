// What kernels and collectives reach of a card's peaks, and what launching them costs: configs/efficiency/, a file a
// card, which gives the origin of every figure. docs/time-model.md has the forms that they are parameters of.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"

namespace vramfit {

/// A figure as its file gives it. `origin` begins with measured, published, fitted or assumed.
struct Figure {
  std::string name;  // "product_share"
  double value = 0;
  std::string origin;
};

struct Efficiency {
  // Matrix products: shares of the card's FLOPs per second in 16 bits (product_share), in fp32 and in FP8.
  double product_share = 1, product_share_fp32 = 1, product_share_fp8 = 1;
  double product_start_seconds = 0;  // of each launch
  /// Parts of a product that a multiprocessor computes at once, of which a kernel takes the better one.
  struct Tile {
    double rows = 1, columns = 1;
  };
  std::array<Tile, 2> tiles;
  double fp8_speedup = 1;     // the card's peak for FP8 factors against that in 16 bits
  double converted_bf16 = 1;  // 16-bit products on a CPU without units for them, against fp32 ones

  /// Fused attention reaches share s / (s + half_length) of the card's FLOPs over s positions; the share is that of the
  /// head sizes 64 and 128, and between them on a line.
  struct Attention {
    double share_64 = 1, share_128 = 1, half_length = 0;
  };
  Attention attention, attention_backward, cudnn_attention, cudnn_attention_backward;

  // Kernels bound by memory: shares of the card's bandwidth.
  double memory_share = 1, cast_share = 1;
  double eager_cast_share = 1;       // of casts to FP8 by PyTorch's own calls
  double memory_start_seconds = 0;   // of each launch
  double host_link_share = 1;        // of PCIe's bandwidth
  double host_memory_bandwidth = 1;  // bytes a second that the CPU reaches for each card in updates in host memory
  double host_memory_range = 1;      // the bandwidth is at least the above divided by this, and at most times this

  // Collectives: shares of the links between cards of a node, and of a node's network adapters.
  double link_share = 1, link_share_all_reduce = 1, network_share = 1;
  double collective_base_seconds = 0;                            // of each collective, whatever its size
  double collective_step_seconds = 0, network_step_seconds = 0;  // of a ring's step within a node, and between nodes

  // Of the speed that kernels have alone, in a step of training: beside other cards, and on a card without any.
  double step_share = 1, step_share_alone = 1;
  /// Eight of ten published steps took between these multiples of their predicted times.
  double step_least = 1, step_most = 1;

  // Of the host: for each kernel, and for each call of PyTorch's library with the launch of its first kernel.
  double launch_seconds = 0, eager_call_seconds = 0;

  std::vector<Figure> figures;  // where the above are from
};

/// Which of the two shares counts on a cluster.
struct StepShare {
  std::string_view name;
  double Efficiency::*value;
};
StepShare step_share_on(const Cluster& cluster);

/// Replaces the figure of that name, or adds it.
void set_figure(Efficiency& efficiency, Figure figure);

/// "19 fitted, 12 assumed, 8 published, 2 measured": how many figures have which kind of origin, the most first.
std::string origins_text(const Efficiency& efficiency);

/// The text of a file, which says after which other file its figures come.
struct EfficiencyFile {
  std::string_view name, text;  // "H100-80GB"
};

/// The figures of `files` for `name`: its own, and others from the file that it inherits. Throws InputError "FILE: ..."
/// for a file that isn't there or of another form, and where figures are missing.
Efficiency read_efficiency(const std::vector<EfficiencyFile>& files, const std::string& name);

/// Those compiled in: of the card, or else of its compute capability. Stays where it is.
const Efficiency& efficiency_of(const Cluster& cluster);

/// `efficiency`, but for what the text of a file says (--calibration): a step_share without one of a card alone is
/// both, and host memory whose bandwidth it gives is that of this machine, without a range. Throws InputError "FILE:
/// ...".
Efficiency calibrated_efficiency(const Cluster& cluster, Efficiency efficiency, std::string_view text,
                                 const std::string& file);

/// The largest share of a peak that a file may say.
double most_share(const Cluster& cluster);

}  // namespace vramfit
