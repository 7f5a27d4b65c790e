// Counts what one rank allocates: its schedule, tapes and units become a ledger, event by event.
#pragma once

#include "estimator/device.h"
#include "estimator/job.h"
#include "estimator/ledger.h"
#include "model_specs/graph.h"

namespace vramfit {

struct CountOptions {
  bool clip = true;
  int steps = 2;           // training steps after load
  bool abbreviate = true;  // run micro-batches 1 .. accumulation-2 once: they allocate the same
};

/// Everything rank `coords` of the job allocates, from load to the end of the last step.
/// Throws NotModelled for features without rules.
Ledger count(const Graph& graph, const Job& job, const Device& device, const Coords& coords,
             const CountOptions& options);

/// Parameters that `--freeze` leaves trainable, by index.
std::vector<bool> trainable_parameters(const Graph& graph, const Job& job);

/// Segments that backward runs through: those from the lowest with a trainable parameter on.
std::vector<bool> segments_with_backward(const Graph& graph, const Job& job);

}  // namespace vramfit
