#include "phantom/core/attributes.h"

#include <algorithm>
#include <array>

#include "phantom/core/architecture.h"
#include "phantom/core/session.h"
#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

struct Row {
  int attribute, value;
};

constexpr int kLast = 147;

// The same on every card here. Sizes of grids and textures: the table of technical specifications per compute
// capability in the CUDA C++ Programming Guide 13.0. What is not listed is 0: a feature that a phantom has not.
constexpr std::array kFixed{
    Row{1, kMaxThreadsPerBlock},  // max threads per block
    Row{2, 1024},                 // max block dim x, y, z
    Row{3, 1024},
    Row{4, 64},
    Row{5, 2147483647},  // max grid dim x, y, z
    Row{6, 65535},
    Row{7, 65535},
    Row{8, kSharedMemoryPerBlock},
    Row{9, 64 << 10},  // constant memory
    Row{10, kWarpSize},
    Row{11, 2147483647},       // max pitch
    Row{12, kRegistersPerSm},  // registers per block
    Row{14, 512},              // texture alignment
    Row{15, 1},                // overlap of copies and kernels
    Row{19, 1},                // can map host memory
    Row{21, 131072},           // textures: 1D
    Row{22, 131072},           // 2D
    Row{23, 65536},
    Row{24, 16384},  // 3D
    Row{25, 16384},
    Row{26, 16384},
    Row{27, 32768},  // 2D layered
    Row{28, 32768},
    Row{29, 2048},
    Row{30, 512},    // surface alignment
    Row{31, 1},      // concurrent kernels
    Row{32, 1},      // ECC
    Row{40, 3},      // copy engines
    Row{41, 1},      // unified addressing
    Row{42, 32768},  // textures: 1D layered
    Row{43, 2048},
    Row{45, 32768},  // gather
    Row{46, 32768},
    Row{47, 8192},  // 3D, alternate
    Row{48, 8192},
    Row{49, 32768},
    Row{51, 32},     // texture pitch alignment
    Row{52, 32768},  // cube maps
    Row{53, 32768},
    Row{54, 2046},
    Row{55, 32768},  // surfaces
    Row{56, 131072},
    Row{57, 65536},
    Row{58, 16384},
    Row{59, 16384},
    Row{60, 16384},
    Row{61, 32768},
    Row{62, 2048},
    Row{63, 32768},
    Row{64, 32768},
    Row{65, 2048},
    Row{66, 32768},
    Row{67, 32768},
    Row{68, 2046},
    Row{69, 268435456},  // textures over linear memory
    Row{70, 131072},
    Row{71, 65000},
    Row{72, 2097120},
    Row{73, 32768},  // mipmapped textures
    Row{74, 32768},
    Row{77, 32768},
    Row{78, 1},  // stream priorities
    Row{79, 1},  // L1 caches
    Row{80, 1},
    Row{82, kRegistersPerSm},  // registers per multiprocessor
    Row{83, 1},                // managed memory
    Row{87, 2},                // single to double precision
    Row{89, 1},                // concurrent managed access
    Row{90, 1},                // preemption
    Row{91, 1},                // host pointers of registered memory
    Row{92, 1},                // memory operations of streams
    Row{93, 1},
    Row{94, 1},
    Row{95, 1},   // cooperative launch
    Row{99, 1},   // host registration
    Row{102, 1},  // virtual memory management
    Row{103, 1},  // shareable as a file descriptor
    Row{108, 0},  // persisting L2: set aside by nobody here
    Row{113, 1},  // read-only host registration
    Row{115, 1},  // memory pools
    Row{119, 1},  // ... shareable as a file descriptor
    Row{122, 1},  // memory operations of streams, 64 bits
    Row{123, 1},
    Row{125, 1},   // events between processes
    Row{131, -1},  // no NUMA node of its own
    Row{134, 0},   // host NUMA node
};

}  // namespace

std::optional<int> device_attribute(int attribute, int card) {
  if (attribute < 1 || attribute > kLast) return std::nullopt;
  const CardFacts& facts = session().card;
  const Architecture& architecture = architecture_of(facts.major, facts.minor);
  const bool hopper = facts.major >= 9;
  switch (attribute) {
    case 13:
      return architecture.clock_khz;
    case 16:
      return facts.sm_count;
    case 33:
      return place_of_card(card) + 1;  // PCI bus
    case 34:
      return 0;  // PCI device
    case 50:
      return 0;  // PCI domain
    case 36:
      return architecture.memory_clock_khz;
    case 37:
      return architecture.memory_bus_bits;
    case 38:
      return static_cast<int>(l2_bytes(facts.catalog_name, architecture));
    case 39:
      return architecture.max_threads_per_sm;
    case 75:
      return facts.major;
    case 76:
      return facts.minor;
    case 81:
      return architecture.shared_memory_per_sm;
    case 97:
      return architecture.shared_memory_per_block_optin;
    case 106:
      return architecture.max_blocks_per_sm;
    case 109:
      return facts.major >= 8 ? 128 << 20 : 0;  // largest access policy window
    case 111:
      return facts.major >= 8 ? kReservedSharedPerBlock : 0;  // shared memory that the system takes
    case 120:
      return hopper ? 1 : 0;  // clusters
    case 126:
      return hopper ? 4 : 1;  // memory synchronization domains
    case 127:
      return hopper ? 1 : 0;  // tensor maps
    case 129:
      return 1;  // unified function pointers
    default:
      break;
  }
  const auto row = std::find_if(kFixed.begin(), kFixed.end(), [&](const Row& r) { return r.attribute == attribute; });
  return row == kFixed.end() ? 0 : row->value;
}

}  // namespace vramfit::phantom
