#include "tests/support/pairwise.h"

#include <random>
#include <set>
#include <tuple>

namespace vramfit::testing {

namespace {

using Row = std::vector<int>;
using Pair = std::tuple<std::size_t, int, std::size_t, int>;

Row random_row(const std::vector<int>& sizes, std::mt19937_64& random) {
  Row row;
  for (int size : sizes) row.push_back(static_cast<int>(random() % static_cast<std::uint64_t>(size)));
  return row;
}

std::vector<Pair> pairs_of(const Row& row) {
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < row.size(); ++a) {
    for (std::size_t b = a + 1; b < row.size(); ++b) pairs.emplace_back(a, row[a], b, row[b]);
  }
  return pairs;
}

std::set<Pair> all_pairs(const std::vector<int>& sizes) {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < sizes.size(); ++a) {
    for (std::size_t b = a + 1; b < sizes.size(); ++b) {
      for (int i = 0; i < sizes[a]; ++i) {
        for (int j = 0; j < sizes[b]; ++j) pairs.emplace(a, i, b, j);
      }
    }
  }
  return pairs;
}

std::size_t newly_covered(const Row& row, const std::set<Pair>& missing) {
  std::size_t covered = 0;
  for (const Pair& pair : pairs_of(row)) covered += missing.contains(pair) ? 1U : 0U;
  return covered;
}

/// The best of many random rows through one missing pair; empty if none of them is allowed.
Row best_row_through(const Pair& pair, const std::vector<int>& sizes, const std::set<Pair>& missing,
                     std::mt19937_64& random, const std::function<bool(const Row&)>& allowed) {
  constexpr int kTries = 200;
  Row best;
  std::size_t best_covered = 0;
  for (int i = 0; i < kTries; ++i) {
    Row row = random_row(sizes, random);
    row[std::get<0>(pair)] = std::get<1>(pair);
    row[std::get<2>(pair)] = std::get<3>(pair);
    if (!allowed(row)) continue;
    const std::size_t covered = newly_covered(row, missing);
    if (covered > best_covered) {
      best_covered = covered;
      best = row;
    }
  }
  return best;
}

}  // namespace

std::vector<Row> pairwise_cover(const std::vector<int>& sizes, std::uint64_t seed, std::size_t minimum,
                                const std::function<bool(const Row&)>& allowed) {
  std::mt19937_64 random(seed);
  std::set<Pair> missing = all_pairs(sizes);
  std::vector<Row> rows;
  while (!missing.empty()) {
    const Pair pair = *missing.begin();
    const Row row = best_row_through(pair, sizes, missing, random, allowed);
    missing.erase(pair);
    if (row.empty()) continue;
    for (const Pair& covered : pairs_of(row)) missing.erase(covered);
    rows.push_back(row);
  }
  while (rows.size() < minimum) {
    Row row = random_row(sizes, random);
    if (allowed(row)) rows.push_back(row);
  }
  return rows;
}

}  // namespace vramfit::testing
