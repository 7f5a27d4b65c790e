// One trace through LibTorch's allocator and through the replay, in step; and the smallest trace that still differs.
#pragma once

#include <optional>
#include <string>

#include "tests/executor/allocator/real_allocator.h"
#include "tests/executor/allocator/trace.h"

namespace vramfit::testing {

struct Difference {
  std::size_t op = 0;  // after which op the two were not equal
  std::string what;
};

/// How often something happened, over all traces: a fuzz that never runs out of memory would prove little.
struct Coverage {
  std::int64_t ops = 0, traces = 0, ooms = 0, retries = 0, frees_to_card = 0, waits = 0;
};

/// None when statistics, addresses and segments were equal throughout: statistics and addresses after every op,
/// segments after every eighth and at the end. Leaves the real allocator empty.
std::optional<Difference> first_difference(RealAllocator& real, const Trace& trace, Coverage& coverage);

/// The trace without whatever can be left out of it, still with a difference.
Trace shrink(RealAllocator& real, Trace trace);

}  // namespace vramfit::testing
