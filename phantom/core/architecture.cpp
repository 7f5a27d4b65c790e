#include "phantom/core/architecture.h"

#include <array>

namespace vramfit::phantom {

namespace {

constexpr int kKiB = 1 << 10;
constexpr std::int64_t kMiB = 1 << 20;

// Shared memory, threads and blocks: CUDA C++ Programming Guide. L2, bus and clocks: NVIDIA's architecture white
// papers.
constexpr std::array kArchitectures{
    Architecture{60, 64 * kKiB, 48 * kKiB, 2048, 32, 4 * kMiB, 4096, 1328500, 715000},
    Architecture{61, 96 * kKiB, 48 * kKiB, 2048, 32, 3 * kMiB, 384, 1582000, 5505000},
    Architecture{70, 96 * kKiB, 96 * kKiB, 2048, 32, 6 * kMiB, 4096, 1530000, 877000},
    Architecture{75, 64 * kKiB, 64 * kKiB, 1024, 16, 4 * kMiB, 256, 1590000, 5001000},
    Architecture{80, 164 * kKiB, 163 * kKiB, 2048, 32, 40 * kMiB, 5120, 1410000, 1593000},
    Architecture{86, 100 * kKiB, 99 * kKiB, 1536, 16, 6 * kMiB, 384, 1695000, 9751000},
    Architecture{89, 100 * kKiB, 99 * kKiB, 1536, 24, 72 * kMiB, 384, 2520000, 10501000},
    Architecture{90, 228 * kKiB, 227 * kKiB, 2048, 32, 50 * kMiB, 5120, 1980000, 2619000},
    Architecture{100, 228 * kKiB, 227 * kKiB, 2048, 32, 126 * kMiB, 8192, 1965000, 3996000},
    Architecture{103, 228 * kKiB, 227 * kKiB, 2048, 32, 126 * kMiB, 8192, 1965000, 3996000},
    Architecture{120, 100 * kKiB, 99 * kKiB, 1536, 24, 96 * kMiB, 512, 2407000, 14001000},
    Architecture{121, 100 * kKiB, 99 * kKiB, 1536, 24, 24 * kMiB, 256, 2400000, 4266000},
};

struct CardCache {
  std::string_view catalog_name;
  std::int64_t bytes;
};

// As CUDA reports them on such a card.
constexpr std::array kCaches{CardCache{"H200-141GB", 60 * kMiB}};

}  // namespace

std::int64_t l2_bytes(std::string_view catalog_name, const Architecture& architecture) {
  for (const CardCache& card : kCaches) {
    if (card.catalog_name == catalog_name) return card.bytes;
  }
  return architecture.l2_bytes;
}

const Architecture& architecture_of(int major, int minor) {
  const int capability = 10 * major + minor;
  const Architecture* best = kArchitectures.data();
  for (const Architecture& row : kArchitectures) {
    if (row.compute_capability <= capability) best = &row;
  }
  return *best;
}

}  // namespace vramfit::phantom
