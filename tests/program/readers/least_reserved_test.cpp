#include "program/readers/least_reserved.h"

#include <doctest/doctest.h>

#include "program/readers/peaks.h"
#include "tests/support/hand_program.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMega = 1 << 20;

/// Allocates on the stream and frees at once.
void use(testing::HandProgram& hand, std::int64_t bytes, Stream stream) {
  const int buffer = hand.buffer("used", bytes, {.bytes = {}, .stream = stream});
  hand.allocate(buffer).free(buffer);
}

}  // namespace

TEST_CASE("what one stream has freed another can't have") {
  for (const Stream second : {Stream::compute, Stream::all_gather}) {
    testing::HandProgram hand;
    use(hand, 3 * kMega, Stream::compute);
    use(hand, 2 * kMega, second);
    use(hand, 3 * kMega, Stream::compute);
    const program::Program program = hand.take();
    CHECK(folded_peaks(program, Bytes{1}).requested.n == 3 * kMega);
    CHECK(least_reserved(program).n == (second == Stream::compute ? 3 : 5) * kMega);
  }
}

TEST_CASE("an emptied cache keeps what is in use, of each stream") {
  testing::HandProgram hand;
  hand.allocate(hand.buffer("kept", kMega, {.bytes = {}, .stream = Stream::all_gather}));
  use(hand, 4 * kMega, Stream::all_gather);
  use(hand, 2 * kMega, Stream::compute);
  CHECK(least_reserved(hand.take()).n == 7 * kMega);
  hand.empty_cache();
  use(hand, 5 * kMega, Stream::compute);
  CHECK(least_reserved(hand.take()).n == 7 * kMega);  // 1 + 5 since then
  use(hand, 7 * kMega, Stream::compute);
  CHECK(least_reserved(hand.take()).n == 8 * kMega);
}

TEST_CASE("what is requested counts, of the card's memory alone") {
  testing::HandProgram hand;
  hand.allocate(hand.buffer("least", 1)).allocate(hand.buffer("more", 513));
  hand.allocate(hand.buffer("pinned", 4096, {.bytes = {}, .stream = Stream::host, .space = program::Space::pinned}));
  CHECK(least_reserved(hand.take()).n == 1 + 513);
}

}  // namespace vramfit
