// A simple time model: FLOPs, bytes and links of a step on a card. A prediction, never a measurement.
#pragma once

#include <memory>

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

/// Step times of many jobs of one model on one cluster. Keeps what they share (layouts, schedules, times of segments),
/// so that a further job costs microseconds; not for several threads at once.
class StepTimer {
 public:
  /// The cluster outlives the timer, and so do the graphs.
  explicit StepTimer(const Cluster& cluster);
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;
  StepTimer(StepTimer&&) = delete;
  StepTimer& operator=(StepTimer&&) = delete;

  /// As step_time(graph, job, cluster).
  StepTime time(const Graph& graph, const Job& job);

 private:
  struct Kept;
  std::unique_ptr<Kept> kept_;
};

}  // namespace vramfit
