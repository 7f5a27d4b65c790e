// Predicted step times of jobs: their programs, read for seconds.
#pragma once

#include <string>

#include "estimator/least/shared_stages.h"
#include "estimator/time/seconds.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Of a resolved job that clips gradients, unless it updates within backward. Throws NotModelled for features without
/// rules.
StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster);
StepTime step_time(const Graph& graph, const Job& job, const Cluster& cluster, const Efficiency& efficiency);

/// Step times of many jobs of one model on one cluster. Jobs of one program_key() (estimator/least/job_keys.h) share a
/// program: timed one after the other, a further one costs little. Not for several threads at once.
class StepTimer {
 public:
  /// The cluster outlives the timer, and so do the graphs.
  explicit StepTimer(const Cluster& cluster) : cluster_(cluster), stages_(cluster.card.device) {}

  /// As step_time(graph, job, cluster).
  StepTime time(const Graph& graph, const Job& job);

 private:
  const Cluster& cluster_;
  SharedStages stages_;
  program::Program program_;  // with the work of the job that was timed last
  std::string key_, ops_;     // of that job; "": none
};

}  // namespace vramfit
