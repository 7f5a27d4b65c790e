// What load and the first step reserve, of many jobs that are nearly alike, as a search tries them one after the other:
// what they have in common is played once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
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
    std::size_t place = 0;    // of the next request
    std::vector<int> blocks;  // by place of the request that made it; kOutOfMemory: none
    // By stream: where the first block lies, and what is mapped from there on.
    std::array<std::int64_t, kStreams> first = {}, mapped = {};
    std::uint64_t live = 0;  // of all blocks that are there: a sum of what share_of() says

    void prepare_for(const std::vector<Request>& requests);
    void play(const std::vector<Request>& requests);
    /// A fingerprint of the allocator and of when blocks will be freed, counted from the end of the step.
    std::uint64_t state() const;

   private:
    std::uint64_t share_of(const std::vector<Request>& requests, std::size_t made) const;
    void allocate(const std::vector<Request>& requests);
  };
  /// What is reserved at the end of a step, or, if it was left before, at least.
  struct Known {
    std::int64_t reserved = 0;
    bool is_end = false;
  };
  struct Hashes;

  Requests read(const Ledger& requests) const;
  /// That of the last place up to which another job has asked for the same.
  const Stage& latest_stage(const Hashes& hashes) const;
  /// Up to where this job and one before it ask for the same, behind `from`; 0 if they don't. Notes what this job asks
  /// for.
  std::size_t shared_beyond(std::size_t from, const Hashes& hashes);
  void keep(std::uint64_t before, const Stage& stage);
  Known play(const std::vector<Request>& requests, std::int64_t limit);

  AllocatorSettings settings_;
  std::optional<CardMemory> card_;                      // of the stages and of what goes on from them
  int plays_ = 0;                                       // on it
  std::deque<std::pair<std::uint64_t, Stage>> stages_;  // by what was asked for until then
  std::unordered_set<std::uint64_t> asked_;             // by jobs, up to places where a stage could be kept
  std::unordered_map<std::uint64_t, Known> known_;      // by state and what follows
};

}  // namespace vramfit
