// Peaks of a program without its events: a block's net and peak are added up once, and calls add them.
#pragma once

#include <array>
#include <vector>

#include "program/program.h"

namespace vramfit {

/// The most that is live at once in a phase of load, of the first step or of later ones, which are alike.
struct FoldedPhase {
  Phase phase = Phase::load;
  bool is_load = false;
  Bytes requested = {}, rounded = {};
  std::array<Bytes, kCategories> categories = {};  // of the requests that are live when `rounded` is first reached
};

/// All but `spaces` are of the card's own memory.
struct FoldedPeaks {
  Bytes requested, rounded;                    // over everything
  std::array<Bytes, kCategories> categories;   // likewise
  Bytes expected;                              // as `requested`, of buffers whose bytes are a bound what is expected
  std::vector<FoldedPhase> phases;             // in the order in which they begin
  std::array<Bytes, program::kSpaces> spaces;  // requested, by space
};

/// `rounded` counts each allocation as a multiple of `granule` bytes, a power of two: 512 gives what is allocated under
/// expandable_segments. Equal to what the ledger's events add up to; what the allocator reserves needs the events.
FoldedPeaks folded_peaks(const program::Program& program, Bytes granule);

}  // namespace vramfit
