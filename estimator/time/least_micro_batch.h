// How long the compute stream takes for one micro-batch at least: the passes over its segments, each behind the
// collectives that it waits for, without a schedule or a program.
#pragma once

#include <cstdint>
#include <vector>

namespace vramfit {

/// What the ops of a segment take on the compute stream, in ticks.
struct SegmentTicks {
  double forward = 0, recompute = 0, backward = 0;  // recompute 0: it isn't
  double leaving = 0;  // of a copy of its activations to host memory, and of one back, on streams of their own
  bool has_backward = false;
};

/// What the units of a segment take, in ticks: collectives, and runs on the compute stream before and after these.
struct SegmentUnits {
  struct Reduction {
    double pieces = 0, collectives = 0, sums = 0;
    double behind = 0;        // of the collectives, those behind the first one, beside which sums may run
    double landing = 0;       // of the gradients that left before: what the host adds up
    double leaving = 0;       // copies to host memory
    double last_landing = 0;  // of the first segment: what the host adds up when the pass is over
  };
  struct Gather {
    double copies = 0;       // of the rank's own part, on the compute stream
    double arrivals = 0;     // of what lies in host memory, on a stream of its own
    double collectives = 0;  // behind these
  };
  Gather gather, regather;  // of units that it is the first to use; of those that certainly are gathered again
  double slices = 0;        // runs after its forward pass, which keep slices for groups
  /// Of its gradients: in the first micro-batch of a step, in another one; where whole gradients are kept until the
  /// last micro-batch, in the first, in another one, and in the last.
  Reduction first, later, keep_first, keep_later, all_kept;
  bool has_one = false;  // unit
  /// If no segment but neighbouring blocks uses it: whether this is the first of them, which gathers it, and the last
  /// one, which gathers it again.
  bool begins_unit = false, ends_unit = false;
  bool reads_in_backward = false;
};

/// Which of them.
using Reductions = SegmentUnits::Reduction SegmentUnits::*;

struct PassOrder {
  std::int64_t forward_ahead = 0, backward_ahead = 0;  // units that are gathered ahead of the pass that needs them
  bool is_exact = false;                               // no gather begins later than these say
  bool is_before_recompute = false;                    // the gather ahead, else behind it
  bool has_groups = false;                             // gather for backward by collectives of their own
  bool finishes_early = false;    // reductions are waited for before backward of what was recomputed
  bool finishes_at_once = false;  // they are waited for behind the backward pass that begins them
  bool knows_copies = false;      // in which order parameters and activations come from host memory
  bool knows_finish = false;      // when reductions are waited for, and so when gradients leave for host memory
};

struct MicroBatchTicks {
  double all = 0;           // until the last reduction is done
  double top_backward = 0;  // until the backward pass of the last segment is done
};

/// From a time at which everything before is done. At most what the schedule of any job with these passes takes.
MicroBatchTicks least_micro_batch(const std::vector<SegmentTicks>& segments, const std::vector<SegmentUnits>& units,
                                  const PassOrder& order, Reductions reductions);

}  // namespace vramfit
