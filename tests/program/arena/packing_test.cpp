#include "program/arena/packing.h"

#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "base/error.h"

namespace vramfit::arena {

namespace {

constexpr Bytes kGranule{512};
constexpr std::int64_t kLittle = 50'000;  // effort
constexpr std::int64_t kForGood = std::numeric_limits<std::int64_t>::max();

Bytes granules(std::int64_t count) { return count * kGranule; }

Packing packed(const std::vector<Lifetime>& blocks) {
  Packing packing = pack(blocks, kGranule, kLittle);
  const std::optional<std::string> fault = fault_of(blocks, packing, kGranule);
  CHECK_MESSAGE(!fault, fault.value_or(""));
  CHECK(packing.size >= packing.bound);
  return packing;
}

/// Like a training step: some that stay, and nested or overlapping lives of a few sizes.
std::vector<Lifetime> random_blocks(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::vector<Lifetime> blocks;
  const std::int64_t count = 1 + below(300), moments = 2 + below(400);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t born = below(moments), kind = below(12);
    const bool stays = below(10) == 0;
    const std::int64_t dies = stays ? kForGood : born + below(3) * below(moments);  // a third has no life
    blocks.push_back({Bytes{below(6) * (1 + 300 * kind)}, born, dies, static_cast<int>(kind)});
  }
  return blocks;
}

}  // namespace

TEST_CASE("what does not live at once shares memory") {
  // a and b live one after the other, c with both: the higher of a and b, and c.
  const std::vector<Lifetime> blocks{{granules(4), 0, 2}, {granules(3), 2, 4}, {granules(2), 1, 3}};
  const Packing packing = packed(blocks);
  CHECK(packing.bound == granules(6));
  CHECK(packing.size == granules(6));
  CHECK(packing.offsets[0] == packing.offsets[1]);
}

TEST_CASE("a block may begin where another ends, at the same moment") {
  const std::vector<Lifetime> blocks{{granules(5), 0, 3}, {granules(5), 3, 4}};
  CHECK(packed(blocks).size == granules(5));
}

TEST_CASE("sizes are rounded up to the granule, and a block without bytes or life takes none") {
  const std::vector<Lifetime> blocks{{Bytes{1}, 0, 9}, {Bytes{513}, 0, 9}, {Bytes{0}, 0, 9}, {granules(7), 5, 5}};
  const Packing packing = packed(blocks);
  CHECK(packing.size == granules(3));
  CHECK(pack({}, kGranule).size == Bytes{0});
}

TEST_CASE("a hole between two that stay is used before the block grows") {
  // Placed as they come, the third would lie above both others: 4 + 1 + 3. The bound is 1 + 4 at time 1, then 1 + 3.
  const std::vector<Lifetime> blocks{{granules(4), 0, 2}, {granules(1), 1, kForGood}, {granules(3), 2, kForGood}};
  CHECK(packed(blocks).size == granules(5));
}

TEST_CASE("the order that is best is found: large blocks first would leave a gap here") {
  // By hand: w [0,2) 2, x [1,4) 2, y [3,5) 2 and z [0,1) and [4,5) 2: the bound is 4, and only x at one end allows it.
  const std::vector<Lifetime> blocks{
      {granules(2), 0, 2}, {granules(2), 1, 4}, {granules(2), 3, 5}, {granules(2), 0, 1}, {granules(2), 4, 5}};
  CHECK(packed(blocks).size == granules(4));
}

TEST_CASE("random blocks never overlap, in no less than lives at once and no more than all of them") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    const std::vector<Lifetime> blocks = random_blocks(seed);
    const Packing packing = packed(blocks);
    CHECK(packing.bound == most_alive(blocks, kGranule));
    CHECK(packing.size.n <= packing.bound.n + packing.bound.n / 4 + granules(40).n);
    const Packing again = pack(blocks, kGranule, kLittle);
    CHECK(again.offsets == packing.offsets);
  }
}

TEST_CASE("with less effort a packing is no smaller, and still sound") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    const std::vector<Lifetime> blocks = random_blocks(seed);
    const Packing quick = pack(blocks, kGranule, 0);
    CHECK_FALSE(fault_of(blocks, quick, kGranule));
    CHECK(quick.size >= pack(blocks, kGranule, kLittle).size);
  }
}

TEST_CASE("faults of packings are found") {
  const std::vector<Lifetime> blocks{{granules(2), 0, 2}, {granules(2), 1, 3}};
  Packing packing = pack(blocks, kGranule);
  std::swap(packing.offsets[0], packing.offsets[1]);
  CHECK_FALSE(fault_of(blocks, packing, kGranule));
  packing.offsets = {granules(0), granules(1)};
  CHECK(fault_of(blocks, packing, kGranule) == "blocks 0 and 1 overlap");
  packing.offsets = {granules(0), granules(3)};
  CHECK(fault_of(blocks, packing, kGranule) == "block 1 ends beyond the size");
  packing.offsets = {granules(0), Bytes{2 * 512 - 64}};
  CHECK(fault_of(blocks, packing, kGranule) == "block 1 is at 960");
}

TEST_CASE("sizes that 64 bits can't hold together are refused") {
  const Bytes most{std::numeric_limits<std::int64_t>::max() - 4096};
  CHECK_THROWS_AS(pack({{most, 0, 1}, {most, 2, 3}}, kGranule), InputError);
}

}  // namespace vramfit::arena
