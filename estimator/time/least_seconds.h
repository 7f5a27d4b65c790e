// A lower bound of a step's time, found without a schedule or a program: what every order of the step's work takes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "estimator/least/open_choices.h"
#include "estimator/least/shared_stages.h"
#include "estimator/time/kernels.h"
#include "estimator/time/least_micro_batch.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/stages/tape.h"
#include "program/stages/units_layout.h"

namespace vramfit {

/// Bounds of many jobs of one model on one cluster. What jobs share is kept. Not for several threads at once.
class LeastSeconds {
 public:
  /// Cluster, figures and graphs outlive the bounds. `clips`: whether gradients are clipped at the end of a step.
  LeastSeconds(const Cluster& cluster, const Efficiency& efficiency, std::shared_ptr<SharedStages> stages, bool clips)
      : cluster_(cluster), timer_(cluster, efficiency), stages_(std::move(stages)), clips_(clips) {}
  /// Of jobs that clip unless they update within backward.
  explicit LeastSeconds(const Cluster& cluster)
      : LeastSeconds(cluster, efficiency_of(cluster), std::make_shared<SharedStages>(cluster.card.device), true) {}

  struct SegmentTimes {
    Kernels forward, recompute, backward;
    std::vector<Kernels> recompute_selective;  // by policy
  };
  /// A part of what units do: runs on the compute stream, and collectives beside it.
  struct UnitTimes {
    Kernels runs;
    double collectives = 0, launches = 0;  // ticks; the host's, of collectives and of what it computes
    double first_collective = 0;           // of what take() returns
    double on_host = 0;                    // of the latter, what it computes
    double copies_in = 0, copies_out = 0;  // ticks of copies from and to host memory
    UnitTimes& operator+=(const UnitTimes& more);
  };
  struct Units {
    std::vector<bool> has_backward;                // by segment
    UnitTimes gathers;                             // of all units once
    UnitTimes regathers;                           // of those that certainly are gathered for backward again
    UnitTimes first_reductions, later_reductions;  // of a step's first micro-batch, and of another one
    UnitTimes clip, update;
    double returning = 0;                // ticks of the copy behind the host's last update
    double replica_sums = 0;             // ticks of collectives, at least
    double norm = 0, results = 0;        // of the one that adds up squares of gradients, and of that of the loss
    std::vector<SegmentUnits> segments;  // the same, by segment
    std::int64_t most_ahead = -1;        // in forward, so that it is certain what is gathered when
  };
  /// Shared by jobs that differ in other choices than those of units_key() and ops_key().
  struct Parts {
    const Units* units = nullptr;
    const std::vector<SegmentTimes>* segments = nullptr;   // none while the micro-batch or the loss is open
    const std::vector<SavedActivations>* saved = nullptr;  // of which some leave for host memory
  };
  Parts parts_of(const Graph& graph, const Job& job, OpenChoices open = {});

  /// At most what StepTimer::time says of the step, whatever open choices turn out to be; 0 for runtimes whose step
  /// isn't lowered, and with an open micro-batch or loss. Throws NotModelled.
  double step_seconds(const Graph& graph, const Job& job, OpenChoices open = {}) {
    return step_seconds(parts_of(graph, job, open), graph, job, open);
  }
  double step_seconds(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const;

 private:
  class UnitsMaker;

  const std::vector<SegmentTimes>& segments_of(const Graph& graph, const Job& job);
  const Units& units_of(const Graph& graph, const Job& job);
  Kernels kernels_of(const std::vector<TapeAction>& actions, const SegmentTape& tape) const;
  /// Of the blocks of one micro-batch, and of each segment.
  static Kernels blocks_of(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open,
                           std::vector<SegmentTicks>& segments);
  /// Adds copies of activations to the segments; returns what those of a micro-batch take in each direction.
  double add_copies(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open,
                    std::vector<SegmentTicks>& segments) const;

  const Cluster& cluster_;
  WorkTimer timer_;
  std::shared_ptr<SharedStages> stages_;
  bool clips_;
  std::map<std::string, std::vector<SegmentTimes>> segments_;  // by ops_key
  std::map<std::string, Units> units_;                         // by units_key
};

}  // namespace vramfit
