// A simple time model: FLOPs, bytes and links of a step on a card. A prediction, never a measurement.
#pragma once

#include "job/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

struct StepTime {
  double compute_seconds = 0;                // matmuls and attention, forward, recompute and backward
  double memory_seconds = 0;                 // ops bound by memory bandwidth, and the optimizer
  double communication_seconds = 0;          // gathers and reductions
  double exposed_communication_seconds = 0;  // what compute does not hide
  double step_seconds = 0;
};

StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster);

}  // namespace vramfit
