// What load and the first step reserve, of many jobs that are nearly alike, as a search tries them one after the other:
// what they have in common is played once.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text/units.h"
#include "estimator/allocator/caching_allocator.h"
#include "program/ledger/ledger.h"

namespace vramfit {

/// Replays of first steps with expandable segments and without a limit, so that nothing is given back. Two jobs that
/// differ in their loss ask for the same until then; and where the allocator is in the same state again and what
/// follows is the same, the end of the step is known. Large blocks are replayed. Small ones, which have pools of their
/// own, count as if nothing lay between them.
class FirstSteps {
 public:
  /// Whether `below` or more is reserved at the end of load and the first step, or earlier. False also where the replay
  /// doesn't tell. `requests`: as requests_of() gives them for one step; what repeats inside a step is played once, and
  /// nothing behind it.
  bool reserve(const Ledger& requests, const std::string& allocator, Bytes below);

 private:
  /// An allocation, or the free of one. Places count from the first request.
  struct Request {
    std::int64_t bytes = 0;  // 0: a free
    int stream = 0;
    int partner = -1;  // the place of its free, or of what it frees; -1: it stays
  };
  struct Requests {
    std::vector<Request> large;
    Bytes small_pages;  // mapped for small ones at least
  };
  /// An allocator in the middle of a step.
  struct Stage {
    CachingAllocator allocator;
    std::vector<int> blocks;  // by place of the request that made it; kOutOfMemory: none
  };
  /// What is reserved at the end of a step, or, if it was left before, at least.
  struct Known {
    std::int64_t reserved = 0;
    bool is_end = false;
  };

  Requests read(const Ledger& requests) const;
  static std::uint64_t state_of(const Stage& stage, const std::vector<Request>& requests, std::size_t place);
  void keep(std::uint64_t before, const Stage& stage);

  AllocatorSettings settings_;
  CardMemory card_{Placement{AddressOrder::ascending, 0}};
  std::deque<std::pair<std::uint64_t, Stage>> stages_;  // by what was asked for until then
  std::unordered_map<std::uint64_t, Known> known_;      // by state and what follows
};

}  // namespace vramfit
