// A lower bound of what a job requests at once: what is certainly held at a few moments of a step, added up without
// counting the step event by event. A search rules out most of what does not fit with it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "estimator/saved_activations.h"
#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Bounds for jobs of one model on one cluster. Keeps what they share, so that a further job costs microseconds; not
/// for several threads at once.
class LeastMemory {
 public:
  explicit LeastMemory(const Cluster& cluster) : cluster_(cluster) {}

  /// At most RankEstimate::peak_requested of the resolved job; 0 for other runtimes than vramfit. `graph` is the job's
  /// and outlives this object. Throws NotModelled where an op has no rule.
  Bytes requested(const Graph& graph, const Job& job);

  /// At most RankEstimate::total: the above and what lies outside the allocator.
  Bytes total(const Graph& graph, const Job& job);

  /// Whether the bound alone excludes the verdict `fits`.
  bool is_too_much(const Graph& graph, const Job& job);

 private:
  /// What a rank holds of its units, whatever the micro-batch.
  struct Units {
    Bytes states;                    // parameter shards and optimizer states
    Bytes gradient_shards;           // of all units
    Bytes whole_gradients;           // as --accumulate unsharded keeps them
    Bytes gathered, slices;          // all units that blocks read: whole, and as --reshard N leaves them
    Bytes top_gathered, top_slices;  // of these, the topmost block's
    std::vector<bool> has_backward;  // by segment
    std::size_t top = 0;             // the block whose backward comes first; the number of segments if there is none
  };

  Bytes least_outside(const Graph& graph, const Job& job) const;
  const std::vector<SavedActivations>& saved_of(const Graph& graph, const Job& job);
  const Units& units_of(const Graph& graph, const Job& job);
  Units make_units(const Graph& graph, const Job& job) const;

  const Cluster& cluster_;
  // By all that they depend on, as text; the graph by its address.
  std::map<std::string, std::vector<SavedActivations>> saved_;
  std::map<std::string, Units> units_;
};

}  // namespace vramfit
