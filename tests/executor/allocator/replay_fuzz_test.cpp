#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "tests/executor/allocator/compare.h"
#include "tests/support/shard.h"

namespace vramfit::testing {

namespace {

/// How many traces all shards run together; a person may ask for more.
std::uint64_t trace_count() {
  const char* text = std::getenv("VRAMFIT_FUZZ_TRACES");
  return text == nullptr ? 12000 : std::strtoull(text, nullptr, 10);
}

RealAllocator& real_allocator() {
  static auto* const kReal = new RealAllocator(kTraceStreams);  // outlives LibTorch's own statics
  return *kReal;
}

}  // namespace

TEST_CASE("random programs: the replay has LibTorch's addresses, statistics, retries and segments after every step") {
  RealAllocator& real = real_allocator();
  const std::int64_t free_bytes = real.free_bytes();
  Coverage coverage;
  for (std::uint64_t seed = 1; seed <= trace_count(); ++seed) {
    if (!is_mine(seed)) continue;
    const Trace trace = random_trace(seed, free_bytes);
    const auto found = first_difference(real, trace, coverage);
    if (!found) continue;
    INFO("seed ", seed, ", op ", found->op, ": ", found->what);
    const Trace smallest = shrink(real, trace);
    const auto difference = first_difference(real, smallest, coverage);
    FAIL("after shrinking to ", smallest.ops.size(), " ops:\n", to_text(smallest),
         difference ? difference->what : "(gone when shrunk: it depends on earlier traces)");
  }
  fmt::print(
      "{} traces, {} ops, {} out of memory, {} retries, {} blocks given back to the card, {} traces with blocks that "
      "wait for a stream\n",
      coverage.traces, coverage.ops, coverage.ooms, coverage.retries, coverage.frees_to_card, coverage.waits);
  if (coverage.traces < 1000) return;  // too few to say anything about
  CHECK(coverage.ooms * 200 > coverage.traces);
  CHECK(coverage.retries * 50 > coverage.traces);
  CHECK(coverage.frees_to_card > coverage.traces);
  CHECK(coverage.waits * 20 > coverage.traces);
}

TEST_CASE("a replay that rounds otherwise than LibTorch is found out, and one request is left of the program") {
  RealAllocator& real = real_allocator();
  Trace trace = random_trace(3, real.free_bytes());
  trace.settings = "expandable_segments:False,large_segment_size_mb:20";
  trace.replayed_settings = trace.settings + ",roundup_power2_divisions:2";
  trace.fraction = 1;
  trace.room = real.free_bytes();
  std::erase_if(trace.ops, [](const Op& op) { return op.kind == Op::Kind::settings; });
  trace.ops.push_back({.kind = Op::Kind::malloc, .block = 100000, .bytes = 5 << 20});
  Coverage ignored;
  REQUIRE(first_difference(real, trace, ignored));
  const Trace smallest = shrink(real, trace);
  CHECK(smallest.ops.size() == 1);
  CHECK(smallest.ops.front().kind == Op::Kind::malloc);
  CHECK(first_difference(real, smallest, ignored));
}

}  // namespace vramfit::testing
