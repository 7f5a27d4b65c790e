// Offsets in one block of memory for blocks whose lifetimes are known beforehand. Finding the smallest packing is
// NP-hard (dynamic storage allocation); orders that are known to do well are tried, and the best of them is improved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/units.h"

namespace vramfit::arena {

/// Lives from time `born` up to, but not including, time `dies`.
struct Lifetime {
  Bytes bytes;
  std::int64_t born = 0, dies = 0;
  int kind = 0;  // blocks of one kind are moved together when a packing is improved
};

struct Packing {
  std::vector<Bytes> offsets;  // multiples of the granule; 0 of what has no bytes or no life
  Bytes size;
  Bytes bound;             // the most that lives at once, each block rounded up to the granule: nothing is smaller
  std::string_view order;  // which order it was found by: "size", "area", ...
};

/// How long to look for a better packing, in overlaps looked at: some 30 to 100 million in a second. Equal input gives
/// equal offsets on every machine, so time is no limit here.
inline constexpr std::int64_t kEffort = 20'000'000;

/// No two blocks that live at once overlap. Ends early once the size is within 0.2 % of the bound. Throws
/// InputError when sizes add up to more than 64 bits hold.
Packing pack(const std::vector<Lifetime>& blocks, Bytes granule, std::int64_t effort = kEffort);

/// Packing::bound, without packing.
Bytes most_alive(const std::vector<Lifetime>& blocks, Bytes granule);

/// What is wrong with a packing: two blocks that overlap in time and space, or one beyond the size or off the granule.
std::optional<std::string> fault_of(const std::vector<Lifetime>& blocks, const Packing& packing, Bytes granule);

}  // namespace vramfit::arena
