// What each segment of a model holds between its forward and its backward pass, and at most while it runs, read off its
// tape.
#pragma once

#include <vector>

#include "program/stages/tape.h"

namespace vramfit {

/// The most that lives of a segment's own while it runs backward: what it saved, the gradient of its output, further
/// gradients and temporaries.
struct BackwardPeak {
  Bytes values;       // without gradients of parameters
  Bytes one_shard;    // with those that can't be written straight into the gradient shard
  Bytes many_shards;  // with those of all parameters, unpadded
};

/// A segment that is checkpointed.
struct CheckpointedActivations {
  Bytes inner;               // held between its forward and its recomputation: all but input and output
  Bytes leaving;             // of that, what is large enough to leave for host memory
  bool holds_input = false;  // there, and while it is recomputed
  Bytes recompute_peak;      // the most that lives of it while it is recomputed, with the gradient of its output
  BackwardPeak backward;
};

/// One segment's blocks while others run. A segment's output is the next one's input: one block.
struct SavedActivations {
  Bytes inner;          // all but input and output
  Bytes leaving;        // of that, what is large enough to leave for host memory
  Bytes input, output;  // their sizes, held or not; ids count as nothing
  Bytes leaving_input;  // the input, if it is large enough to leave
  bool holds_input = false, holds_output = false;
  Bytes forward_peak;             // the most that lives of it while it runs forward, its input included
  BackwardPeak making_gradients;  // the same of a forward pass that makes gradients, with those; otherwise nothing
  BackwardPeak backward;
  CheckpointedActivations full;                    // of a block with a backward pass
  std::vector<CheckpointedActivations> selective;  // likewise, by policy
};

/// One entry a segment. `tapes`: made from the inputs. `gradient`: of gradient shards.
std::vector<SavedActivations> saved_activations(const TapeInputs& inputs, const SharedTapes& tapes, Dtype gradient);

}  // namespace vramfit
