// A lower bound of what a job requests at once: the most of what is certainly held at a few moments of a step, added up
// without counting the step event by event. A search rules out most of what does not fit with it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "estimator/least/leaving_activations.h"
#include "estimator/least/open_choices.h"
#include "estimator/least/saved_activations.h"
#include "estimator/least/shared_stages.h"
#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Bounds for jobs of one model on one cluster. Keeps what they share, so that a further job costs microseconds; not
/// for several threads at once.
class LeastMemory {
 public:
  LeastMemory(const Cluster& cluster, std::shared_ptr<SharedStages> stages)
      : cluster_(cluster), stages_(std::move(stages)) {}
  explicit LeastMemory(const Cluster& cluster)
      : LeastMemory(cluster, std::make_shared<SharedStages>(cluster.card.device)) {}

  /// What a rank holds of its units, whatever the micro-batch.
  struct Units {
    Bytes resident;                  // parameter shards, optimizer states and libraries' workspaces
    Bytes host;                      // shards, states and gradients in host memory, and what these pass through
    Bytes host_sums;                 // what gradients pass through there if a step reduces a unit's several times
    Bytes rope;                      // tables of rotary embeddings, for each token of a sequence
    Bytes gradient_shards;           // of all units
    Bytes largest_gradient_shard;    // of one unit
    Bytes whole_gradients;           // as --accumulate unsharded keeps them
    std::int64_t shards = 1;         // ranks a parameter is split over
    std::vector<bool> has_backward;  // by segment
    std::size_t top = 0;             // the block whose backward comes first; the number of segments if there is none
    std::size_t below_top = 0;       // the next one that doesn't share its unit; 0: there is none
    std::size_t bottom = 0;          // the block whose backward comes last
    /// By segment. Gathered units count in the compute dtype; those that are their own shard don't.
    struct OfSegment {
      Bytes gradient_shards;  // of units that this segment or a later one has gradients of
      Bytes unfinished;       // of them, those that an earlier segment has gradients of, too
      Bytes pieces;           // the gradients of this segment's parameters while they are reduced
      Bytes gathered;         // its units, where its backward reads them
      Bytes kept;             // units of blocks with backward up to this one, all gathered
      Bytes slices;           // what --reshard N leaves of units that this segment and later ones don't use
      Bytes next;             // more with the unit that is gathered ahead while its backward runs
      Bytes running;          // its units, gathered, while its forward runs
      Bytes last_kept;  // after the last block: what --reshard last-kept leaves gathered besides this segment's units
      /// More with units that neither this segment nor an earlier one uses, gathered ahead while its forward runs: for
      /// one pass and for two.
      std::array<Bytes, 2> next_forward;
    };
    std::vector<OfSegment> segments;
    Bytes slices;  // what --reshard N leaves of all units of blocks
  };
  /// Shared by jobs that differ in other choices than those of units_key() and ops_key().
  struct Parts {
    const Units* units = nullptr;
    const std::vector<SavedActivations>* saved = nullptr;  // none while the micro-batch is open
  };
  Parts parts_of(const Graph& graph, const Job& job, OpenChoices open = {});

  /// What segments keep between their passes. Jobs that differ in neither activations nor checkpointing share it.
  struct HeldActivations {
    /// All that it depends on: how blocks are checkpointed, with which policy, or whether that is open; and of how many
    /// blocks the activations of one leave the card (0: of none).
    struct Key {
      bool is_open = false;
      std::size_t checkpointing = 0;
      std::int64_t every = 0, leave_every = 0;
      std::optional<std::size_t> policy = {};
      bool operator==(const Key&) const = default;
    };
    Key key;
    std::vector<Kept> kept;    // by segment
    std::vector<Bytes> below;  // of the segments before each one; of all at the end
  };

  /// At most RankEstimate::peak_requested of the resolved job; 0 for other runtimes than vramfit. `graph` is the job's
  /// and outlives this object. What is open holds for every choice: the job's own is not looked at, nor with an open
  /// loss the number of chunks in the graph. Throws NotModelled where an op has no rule.
  Bytes requested(const Graph& graph, const Job& job, OpenChoices open = {}) {
    return requested(parts_of(graph, job, open), graph, job, open);
  }
  Bytes requested(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const;

  /// At most RankEstimate::total: the above and what lies outside the allocator.
  Bytes total(const Graph& graph, const Job& job, OpenChoices open = {}) {
    return total(parts_of(graph, job, open), graph, job, open);
  }
  Bytes total(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const;

  /// At most RankEstimate::host: what the rank holds of its units there, and activations that leave the card.
  Bytes host(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const;

  /// Whether a job of which at least `least` is known to be needed can't have the verdict `fits`. `least`: as total()
  /// gives it, or more. Nor can one whose ranks certainly need more host memory than a node has.
  bool is_too_much(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open, Bytes least) const;

  /// What lies outside the allocator at least: total() less requested().
  Bytes outside(const Graph& graph, const Job& job) const;

 private:
  const Units& units_of(const Graph& graph, const Job& job);
  const HeldActivations& held_by(const Parts& parts, const Graph& graph, const Job& job, OpenChoices open) const;
  Units make_units(const Graph& graph, const Job& job);  // estimator/least/least_memory_units.cpp

  const Cluster& cluster_;
  std::shared_ptr<SharedStages> stages_;
  // By all that they depend on, as text; the graph by its address.
  std::map<std::string, Units> units_;
  mutable std::map<const std::vector<SavedActivations>*, std::deque<HeldActivations>> held_;
};

}  // namespace vramfit
