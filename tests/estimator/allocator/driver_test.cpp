#include "estimator/allocator/driver.h"

#include <doctest/doctest.h>

#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"

namespace vramfit {

namespace {

constexpr std::int64_t kPage = std::int64_t{2} << 20;

/// The lowest or the highest `count` free pages, looked for one by one.
std::optional<std::int64_t> place_among(const std::vector<bool>& taken, std::int64_t count, bool highest) {
  const auto pages = static_cast<std::int64_t>(taken.size());
  for (std::int64_t i = 0; i + count <= pages; ++i) {
    const std::int64_t first = highest ? pages - count - i : i;
    std::int64_t page = first;
    while (page < first + count && !taken[static_cast<std::size_t>(page)]) ++page;
    if (page == first + count) return first;
  }
  return std::nullopt;
}

void set_taken(std::vector<bool>& taken, std::int64_t first, std::int64_t count, bool value) {
  for (std::int64_t page = first; page < first + count; ++page) taken[static_cast<std::size_t>(page)] = value;
}

}  // namespace

TEST_CASE("ascending addresses rise, descending ones fall, and what was given back is used again") {
  for (const bool descends : {false, true}) {
    CAPTURE(descends);
    CardMemory card({80 * kPage}, std::nullopt, {descends ? AddressOrder::descending : AddressOrder::ascending});
    const std::int64_t first = *card.allocate(4 * kPage), second = *card.allocate(kPage), third = *card.allocate(kPage);
    CHECK((second > first) == !descends);
    CHECK((third > second) == !descends);
    card.free(first, 4 * kPage);
    CHECK(*card.allocate(kPage) == (descends ? first + 3 * kPage : first));
  }
}

TEST_CASE("a block lies where a search page by page finds room for it, and shuffled ones where nothing else does") {
  for (const AddressOrder order : {AddressOrder::ascending, AddressOrder::descending, AddressOrder::shuffled}) {
    CAPTURE(order);
    std::mt19937_64 random(7);
    AddressSpace space(order, 3, 120);
    std::vector<bool> taken(120);
    std::vector<std::pair<std::int64_t, std::int64_t>> blocks;
    int full = 0;
    for (int i = 0; i < 3000; ++i) {
      if (!blocks.empty() && random() % 5 < 2) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        const auto [first, count] = blocks.back();
        blocks.pop_back();
        space.give_back(first, count);
        set_taken(taken, first, count, false);
        continue;
      }
      const auto count = static_cast<std::int64_t>(1 + random() % 9);
      const std::optional<std::int64_t> expected = place_among(taken, count, order == AddressOrder::descending);
      const std::optional<std::int64_t> first = space.take(count);
      REQUIRE(first.has_value() == expected.has_value());
      full += first ? 0 : 1;
      if (!first) continue;
      if (order != AddressOrder::shuffled) REQUIRE(*first == *expected);
      for (std::int64_t page = *first; page < *first + count; ++page) REQUIRE(!taken[static_cast<std::size_t>(page)]);
      set_taken(taken, *first, count, true);
      blocks.emplace_back(*first, count);
    }
    CHECK(full > 100);
  }
}

TEST_CASE("a driver reserves whole 32 MiB, each below the last, and fills the lowest gap") {
  CardMemory card({4000 * kPage}, std::nullopt, {AddressOrder::driver});
  const std::int64_t own = *card.allocate(140 * kPage);  // of the 300 MiB that a context brings
  const std::int64_t first = *card.allocate(16 * kPage), second = *card.allocate(10 * kPage);
  CHECK(first == own - 16 * kPage);
  CHECK(second == own + 140 * kPage);
  const std::int64_t third = *card.allocate(10 * kPage), fourth = *card.allocate(501 * kPage);
  CHECK(third == first - 16 * kPage);  // 6 pages above it are free
  CHECK(fourth == third - 512 * kPage);
  CHECK(*card.allocate(kPage) == fourth + 501 * kPage);
  CHECK(*card.allocate(10 * kPage) == fourth + 502 * kPage);
  CHECK(*card.allocate(6 * kPage) == third + 10 * kPage);
  card.free(second, 10 * kPage);
  CHECK(*card.allocate(8 * kPage) == second);
}

TEST_CASE("a driver's addresses suffice for a small card's memory, and end") {
  CardMemory card({10 * kPage}, std::nullopt, {AddressOrder::driver});  // an address range of 88 pages
  CHECK(card.allocate(10 * kPage));
  AddressSpace space(AddressOrder::driver, 0, 180);
  CHECK(space.take(150) == 30);
  const std::uint64_t before = space.state();
  CHECK(space.take(10) == 14);
  CHECK(space.state() != before);
  CHECK(space.take(14) == 0);
  CHECK_FALSE(space.take(7));
  CHECK(space.take(6) == 24);
}

TEST_CASE("addresses without memory lie apart from memory, and from each other") {
  CardMemory card({80 * kPage}, std::nullopt, {});
  const std::int64_t first = card.reserve(90 * kPage), second = card.reserve(90 * kPage);
  CHECK(second == first + 90 * kPage);
  CHECK(*card.allocate(80 * kPage) + 80 * kPage <= first);
}

TEST_CASE("a card hands out whole pages of 2 MiB until it is full, and takes back what it handed out") {
  CardMemory card({10 * kPage}, Bytes{4 * kPage}, {});
  const std::int64_t address = *card.allocate(kPage + 1);  // two pages
  CHECK_FALSE(card.allocate(3 * kPage));
  CHECK_FALSE(card.create_pages(3, kPage));
  CHECK(card.create_pages(2, kPage));
  CHECK_FALSE(card.allocate(1));
  card.free(address, kPage + 1);
  CHECK(card.allocate(2 * kPage));
  card.release_pages(2, kPage);
  CHECK(card.create_pages(1, 2 * kPage));
}

TEST_CASE("listed addresses are handed out in their order, and one too few is a fault") {
  ListedCard card({10 * kPage}, std::nullopt);
  card.add(700);
  card.add(20);
  CHECK(*card.allocate(kPage) == 700);
  CHECK(card.reserve(kPage) == 20);
  CHECK_THROWS_AS(card.allocate(kPage), FaultError);
}

}  // namespace vramfit
