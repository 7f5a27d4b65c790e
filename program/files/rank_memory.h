// The memory of one rank, as it was predicted or measured: peaks by phase, and their breakdown by category.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/text/units.h"
#include "job/job.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// Live bytes by category at the moment of the peak; all but the last two sum to peak_allocated.
struct Breakdown {
  std::array<Bytes, kCategories> categories{};
  Bytes rounding;           // block sizes minus requested sizes
  Bytes fragmentation;      // reserved - allocated
  Bytes outside_allocator;  // context, NCCL, other libraries
};

/// What a total consists of: categories, rounding, fragmentation and what is outside the allocator, in this order.
inline constexpr std::size_t kBreakdownParts = kCategories + 3;
/// The name of a part in text and JSON; part < kBreakdownParts.
std::string_view breakdown_part_name(std::size_t part);
std::array<Bytes, kBreakdownParts> breakdown_parts(const Breakdown& breakdown);
Breakdown breakdown_of(const std::array<Bytes, kBreakdownParts>& parts);

struct PhasePeak {
  Phase phase{};
  bool steady = true;  // first step, or steady step
  Bytes requested, allocated, reserved;
  Bytes host = {};  // of buffers in host memory; predictions only
  struct Sizes {
    Bytes requested = {}, allocated = {}, reserved = {};
  };
  Sizes entered = {};  // what is live when it begins, at most; predictions only
};

struct RankEstimate {
  std::int64_t first_rank = 0, last_rank = 0;
  Coords coords;
  Bytes peak_requested, peak_allocated, peak_reserved, total, upper_bound;
  Bytes host;                      // of its buffers in host memory (program/readers/host_bytes.h); predictions only
  Bytes managed;                   // of those in managed memory, which is on the card only while there is room
  Bytes least_reserved;            // lower end of the band over address orders
  std::int64_t alloc_retries = 0;  // at the card's real capacity: in load and the first two steps
  std::int64_t later_retries = 0;  // at the card's real capacity: in the worst later step
  bool out_of_memory = false;      // on the card as it is, after all retries
  bool gives_back = false;         // fits only because the allocator releases cached memory
  bool reserved_grows = false;     // with every step replayed; the allocator never settles
  Breakdown breakdown;
  std::vector<PhasePeak> phases;
};

}  // namespace vramfit
