// What each segment of a model holds between its forward and its backward pass, read off its tape.
#pragma once

#include <vector>

#include "program/stages/tape.h"

namespace vramfit {

/// One segment's blocks while others run. A segment's output is the next one's input: one block.
struct SavedActivations {
  Bytes inner;             // all but input and output
  Bytes recomputed_inner;  // the same of a checkpointed segment, once it has been recomputed
  Bytes input, output;     // their sizes, held or not; ids count as nothing
  bool holds_input = false, holds_output = false;
  bool holds_input_recomputed = false;
};

/// One entry a segment. Throws what make_shared_tapes throws.
std::vector<SavedActivations> saved_activations(const TapeInputs& inputs);

}  // namespace vramfit
