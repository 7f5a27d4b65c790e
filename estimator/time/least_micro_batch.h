// How long the compute stream takes for one micro-batch at least: the passes over its segments, each behind the
// collectives that it waits for and, where launches take long, behind the host, without a schedule or a program.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/time/kernels.h"

namespace vramfit {

/// What the ops of a segment take on the compute stream, in ticks.
struct SegmentTicks {
  Kernels forward, recompute, backward;  // recompute: none if it isn't
  double leaving = 0;  // of a copy of its activations to host memory, and of one back, on streams of their own
  bool has_backward = false;
};

/// What the units of a segment take, in ticks: collectives, and runs on the compute stream before and after these.
/// `launches` is what the host takes for the rest, collectives and copies.
struct SegmentUnits {
  struct Reduction {
    Kernels pieces, sums;
    double collectives = 0;
    double launches = 0;  // before sums
    double launches_behind = 0;
    double behind = 0;        // of the collectives, those behind the first one, beside which sums may run
    double landing = 0;       // of the gradients that left before: what the host adds up
    double leaving = 0;       // copies to host memory
    double last_landing = 0;  // of the first segment: what the host adds up when the pass is over
  };
  struct Gather {
    Kernels copies;          // of the rank's own part, on the compute stream
    double arrivals = 0;     // of what lies in host memory, on a stream of its own
    double collectives = 0;  // behind these
    double launches = 0;
  };
  Gather gather, regather;  // of units that it is the first to use; of those that certainly are gathered again
  Kernels slices;           // runs after its forward pass, which keep slices for groups
  /// Of its gradients: in the first micro-batch of a step, in another one; where whole gradients are kept until the
  /// last micro-batch, in the first, in another one, and in the last.
  Reduction first, later, keep_first, keep_later, all_kept;
  bool has_one = false;  // unit
  /// Where it is known which segments gather them: whether this one does, which those behind it may share them with,
  /// and whether it is the last of these, which gathers them again.
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
  bool follows_host = false;      // nothing runs before it is launched
};

struct MicroBatchTicks {
  double all = 0;           // until the last reduction is done
  double top_backward = 0;  // until the backward pass of the last segment is done
  double host = 0;          // until all is launched, if the order follows the host
};

/// From a time at which the compute stream is done with everything before, and the host gets to it `host` ticks later,
/// or so much earlier (kNever: nobody knows when). At most what the schedule of any job with these passes takes.
MicroBatchTicks least_micro_batch(const std::vector<SegmentTicks>& segments, const std::vector<SegmentUnits>& units,
                                  const PassOrder& order, Reductions reductions, double host);

}  // namespace vramfit
