// What one rank allocates, event by event, under any runtime.
#pragma once

#include "job/cluster/device.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/ledger/ledger.h"
#include "program/run_effects.h"

namespace vramfit {

struct CountOptions {
  RunEffects run = {};
  int steps = 2;  // training steps after load
  // Count what repeats once: micro-batches 1 .. accumulation-2 and all steps from the last on are Repeats of the
  // ledger, because they request the same. The gradient norm, summed in equal parts, counts one of them: each reuses
  // what the one before it freed.
  bool abbreviate = true;
};

/// Everything rank `coords` of the job allocates, from load to the end of the last step.
/// Throws NotModelled for features without rules.
Ledger count(const Graph& graph, const Job& job, const Device& device, const Coords& coords,
             const CountOptions& options);

}  // namespace vramfit
