// Pairwise covers: a small set of rows in which every pair of values of any two axes occurs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace vramfit::testing {

/// `sizes[a]` values on axis a. Greedy, deterministic for a seed; rows are value indices. Rows that `allowed` refuses
/// are not made; pairs that no allowed row holds are left out. At least `minimum` rows: the rest is drawn at random.
std::vector<std::vector<int>> pairwise_cover(const std::vector<int>& sizes, std::uint64_t seed, std::size_t minimum,
                                             const std::function<bool(const std::vector<int>&)>& allowed);

}  // namespace vramfit::testing
