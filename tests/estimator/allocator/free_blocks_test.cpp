#include "estimator/allocator/free_blocks.h"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

namespace vramfit {
namespace {

using Sorted = std::set<std::pair<std::int64_t, std::int64_t>>;

std::vector<std::pair<std::int64_t, std::int64_t>> all_of(const FreeBlocks& free) {
  std::vector<std::pair<std::int64_t, std::int64_t>> all;
  for (auto place = free.begin(); !place.is_end(); place = free.next(place)) {
    all.emplace_back(free.at(place).size, free.at(place).address);
  }
  return all;
}

/// Both ways round, and what best fit would take.
void check_equal(const FreeBlocks& free, const Sorted& sorted, std::int64_t wanted) {
  REQUIRE(all_of(free) == std::vector(sorted.begin(), sorted.end()));
  auto place = free.lower_bound(wanted);
  auto expected = sorted.lower_bound({wanted, 0});
  CHECK(place.is_end() == (expected == sorted.end()));
  for (int n = 0; n < 300 && expected != sorted.begin(); ++n) {
    place = free.previous(place);
    --expected;
    REQUIRE(free.at(place).size == expected->first);
    REQUIRE(free.at(place).address == expected->second);
  }
}

}  // namespace

TEST_CASE("free blocks stay sorted by size and address, thousands of one size among them") {
  std::mt19937_64 random(7);
  FreeBlocks free;
  Sorted sorted;
  for (int n = 0; n < 20'000; ++n) {
    const bool grows = n / 5'000 % 2 == 0;  // 3,000 blocks, then few, twice
    const std::int64_t size = random() % 4 != 0 ? 4096 : static_cast<std::int64_t>(1 + random() % 200) * 512;
    if (sorted.empty() || random() % 5 < (grows ? 4U : 1U)) {
      const auto address = static_cast<std::int64_t>(random() % (1U << 30U)) * 512;
      if (sorted.emplace(size, address).second) free.insert({.size = size, .address = address, .block = n});
    } else {
      auto going = sorted.lower_bound({size, static_cast<std::int64_t>(random() % (1U << 30U)) * 512});
      if (going == sorted.end()) going = sorted.begin();
      free.erase(going->first, going->second);
      sorted.erase(going);
    }
    if (n % 500 == 0) check_equal(free, sorted, size);
  }
  check_equal(free, sorted, 1);
}

}  // namespace vramfit
