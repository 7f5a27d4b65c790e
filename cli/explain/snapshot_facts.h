// What a snapshot says of a device: how full it is, who holds the memory, and where its peak was.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/explain/snapshot.h"

namespace vramfit {

/// Blocks that the same line asked for.
struct HeldByLine {
  std::optional<CodePlace> place;  // the innermost line of a library or of one's own that is not torch's; else torch's
  std::optional<CodePlace> own;    // one's own line above it, where that is another
  std::string phase;               // "forward"; "" if nothing says
  std::string why_unknown;         // without a place: "allocated before the recording", ...
  Bytes bytes;                     // requested
  std::int64_t blocks = 0;
  Bytes largest;
};

/// Bytes that were asked for in one phase.
struct HeldByPhase {
  std::string phase;  // a phase's name, or why it isn't known
  Bytes bytes;
};

struct HeldMemory {
  Bytes bytes;                      // requested, of all blocks
  std::vector<HeldByLine> lines;    // most bytes first
  std::vector<HeldByPhase> phases;  // most bytes first
};

struct SnapshotPeak {
  std::size_t event = 0, events = 0;  // after which of how many
  Bytes reserved;                     // the most that was, at any moment of the recording
  HeldMemory held;
};

struct SnapshotOom {
  Bytes asked, free;
  std::int32_t stack = kNoStack;
};

struct SnapshotFacts {
  int device = 0;
  std::int64_t segments = 0, blocks = 0;  // blocks: allocated ones
  Bytes reserved, allocated, awaiting_free, unallocated, largest_free;
  Bytes stuck;          // unallocated, in segments with blocks that are in use: not given back by empty_cache
  Bytes private_pools;  // reserved by them
  bool expandable = false;
  HeldMemory held;
  std::optional<SnapshotPeak> peak;  // of the recorded events; none without any
  std::optional<SnapshotOom> oom;    // the last
  std::int64_t unmatched = 0;        // events that don't lead to the state at the end: the recording ended before it
};

SnapshotFacts facts_of(const Snapshot& snapshot, const SnapshotDevice& device);

}  // namespace vramfit
