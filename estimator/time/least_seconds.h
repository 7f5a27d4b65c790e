// A lower bound of a step's time, found without a schedule or a program: what every order of the step's work takes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "estimator/open_choices.h"
#include "estimator/time/kernels.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/stages/tape.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// Bounds of many jobs of one model on one cluster. What jobs share is kept. Not for several threads at once.
class LeastSeconds {
 public:
  /// Cluster and figures outlive the bounds, and so do the graphs.
  LeastSeconds(const Cluster& cluster, const Efficiency& efficiency) : cluster_(cluster), timer_(cluster, efficiency) {}
  explicit LeastSeconds(const Cluster& cluster) : LeastSeconds(cluster, efficiency_of(cluster)) {}

  struct SegmentTimes {
    Kernels forward, recompute, backward;
    std::vector<Kernels> recompute_selective;  // by policy
  };
  /// A part of what units do: runs on the compute stream, and collectives beside it.
  struct UnitTimes {
    Kernels runs;
    double collectives = 0, launches = 0;  // ticks; the host's, of collectives and of what it computes
    double copies_in = 0, copies_out = 0;  // ticks of copies from and to host memory
    UnitTimes& operator+=(const UnitTimes& more);
  };
  struct Units {
    std::vector<bool> has_backward;                // by segment
    UnitTimes gathers;                             // of all units once
    UnitTimes regathers;                           // of those that certainly are gathered for backward again
    double first_wait = 0;                         // of the compute stream, for the first segment's units
    double all_waits = 0;                          // for those of each segment, if no gather begins before it
    UnitTimes first_reductions, later_reductions;  // of a step's first micro-batch, and of another one
    double last_wait = 0;                          // at the end of a micro-batch that reduces
    UnitTimes update;
  };
  /// Shared by jobs that differ in other choices than those of units_key() and ops_key().
  struct Parts {
    const Units* units = nullptr;
    const std::vector<SegmentTimes>* segments = nullptr;  // none while the micro-batch or the loss is open
  };
  Parts parts_of(const Graph& graph, const Job& job, OpenChoices open = {});

  /// At most what StepTimer::time says of the step, whatever open choices turn out to be; 0 for runtimes whose step
  /// isn't lowered, and with an open micro-batch or loss. Throws NotModelled.
  double step_seconds(const Graph& graph, const Job& job, OpenChoices open = {}) {
    return step_seconds(parts_of(graph, job, open), graph, job, open);
  }
  static double step_seconds(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open);

 private:
  class UnitsMaker;

  const std::vector<SegmentTimes>& segments_of(const Graph& graph, const Job& job);
  const Units& units_of(const Graph& graph, const Job& job);
  Kernels kernels_of(const std::vector<TapeAction>& actions, const SegmentTape& tape) const;
  /// Of the blocks of one micro-batch.
  static Kernels blocks_of(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open);

  const Cluster& cluster_;
  WorkTimer timer_;
  std::map<std::string, std::vector<SegmentTimes>> segments_;  // by ops_key
  std::map<std::string, Units> units_;                         // by units_key
};

}  // namespace vramfit
