#include "estimator/allocator/driver.h"

#include <doctest/doctest.h>

#include <set>

#include "model_specs/error.h"

namespace vramfit {

namespace {
constexpr std::int64_t kPage = std::int64_t{2} << 20;
}

TEST_CASE("ascending addresses rise, descending ones fall, and what was given back is used again") {
  for (const bool descends : {false, true}) {
    CAPTURE(descends);
    CardMemory card({80 * kPage}, std::nullopt,
                    {.kind = descends ? AddressOrder::Kind::descending : AddressOrder::Kind::ascending});
    const std::int64_t first = *card.allocate(4 * kPage), second = *card.allocate(kPage), third = *card.allocate(kPage);
    CHECK((second > first) == !descends);
    CHECK((third > second) == !descends);
    card.free(first, 4 * kPage);
    const std::int64_t low = *card.allocate(kPage), high = *card.allocate(3 * kPage);
    CHECK(low == (descends ? first + 3 * kPage : first));
    CHECK(high == (descends ? first : first + kPage));
    card.free(second, kPage);
    card.free(low, kPage);
    card.free(high, 3 * kPage);
    CHECK(*card.allocate(5 * kPage) == (descends ? second : first));  // the gaps have joined
  }
}

TEST_CASE("a shuffle is the same for the same seed, in no order, and never hands out an address twice") {
  CardMemory card({kPage}, std::nullopt, {.kind = AddressOrder::Kind::shuffled, .seed = 3});
  CardMemory again({kPage}, std::nullopt, {.kind = AddressOrder::Kind::shuffled, .seed = 3});
  std::set<std::int64_t> seen;
  std::int64_t last = 0, rises = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t address = *card.allocate(64 * kPage);
    CHECK(address == *again.allocate(64 * kPage));
    CHECK(seen.insert(address).second);
    rises += address > last ? 1 : 0;
    last = address;
  }
  CHECK(rises > 400);
  CHECK(rises < 600);
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
