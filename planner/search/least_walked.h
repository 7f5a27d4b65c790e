// Lower bounds of the memory of a job under one of PyTorch's runtimes and of its step, from walks of the same
// model with few blocks.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "job/job.h"
#include "job/loss/loss_options.h"
#include "model_specs/graph.h"
#include "program/lowering/lower.h"

namespace vramfit {

/// At most what a job takes.
struct LeastOfWalk {
  Bytes requested, reserved;   // at once, without what is outside the allocator (program/readers/least_reserved.h)
  double compute_seconds = 0;  // of its step, in which the compute stream runs kernels
};

/// For jobs of one model on one cluster. Not for several threads at once.
class LeastWalked {
 public:
  LeastWalked(const ModelSpec& spec, const Cluster& cluster, const Efficiency& efficiency, RunEffects run)
      : spec_(spec), cluster_(cluster), efficiency_(efficiency), run_(run) {}

  /// At most what a job requests at once, without a walk: what lives while it updates (least_while_updating()), what
  /// DeepSpeed keeps all the time, and weights that are loaded whole before they are parted, if they are.
  static Bytes without_walk(const Graph& graph, const Job& job);
  /// At most what a rank keeps in host memory: what is updated there, with AdamW's states. 0 where nothing is known.
  static Bytes in_host_memory(const Graph& graph, const Job& job);
  /// From few blocks; where they tell nothing, from all blocks and few micro-batches, whose walk serves all jobs with
  /// more of them. None where that is the job itself. `job` is resolved, `graph` its own.
  std::optional<LeastOfWalk> of(const Graph& graph, const Job& job);
  /// Of the jobs that differ from `job` in micro-batch and accumulation alone, the one that needs least.
  Job with_one_row(const Job& job) const;
  /// With one micro-batch of so many rows; none where more rows may need less.
  std::optional<Job> with_rows(const Job& job, std::int64_t rows) const;
  /// Whether of() walks through all blocks.
  bool walks_all_blocks(const Graph& graph, const Job& job);
  /// At most the memory of any job that differs from `job` in micro-batch and accumulation alone, from walks that serve
  /// them all; no seconds. Where every Nth block is checkpointed, the others alone are counted, which all N share. None
  /// where of() says nothing.
  std::optional<LeastOfWalk> at_any_batch(const Graph& graph, const Job& job);
  /// Likewise of those with at least twice as many rows in a micro-batch as `rows`.
  std::optional<LeastOfWalk> at_twice_the_rows(const Graph& graph, const Job& job, std::int64_t rows);

 private:
  /// The job's model with another number of blocks; none unless it is `graph` but for that.
  const std::optional<Graph>& short_graph(const Graph& graph, const Job& job, std::size_t blocks);
  /// After how many blocks the model's are like those before.
  std::size_t alternation(const Graph& graph, const Job& job);
  /// None where nothing is known: blocks that differ without alternating, choices of blocks one by one, and models so
  /// shallow that to walk through all blocks takes no longer.
  std::optional<LeastOfWalk> of_few_blocks(const Graph& graph, const Job& job);
  std::optional<LeastOfWalk> of_all_blocks(const Graph& graph, const Job& job);
  /// With whole periods of blocks left out, and added again as the last one walked through.
  std::optional<LeastOfWalk> extended(const Graph& graph, const Job& job, std::size_t period, std::size_t blocks);
  /// Of a job that checkpoints one block of each period: its other blocks alone.
  std::optional<LeastOfWalk> without_checkpointed(const Graph& graph, const Job& job);
  /// At most the memory of a job; no seconds. Where every Nth block is checkpointed, only the others are counted, from
  /// walks that serve all N.
  std::optional<LeastOfWalk> memory_of(const Graph& graph, const Job& job);
  /// What its checkpointed blocks add to the seconds of the others.
  double seconds_of_checkpointed(const Graph& graph, const Job& job);
  /// None if `blocks` of it aren't known to be the same model.
  std::optional<LeastOfWalk> walked(const Graph& graph, const Job& job, std::size_t blocks);

  const ModelSpec& spec_;
  const Cluster& cluster_;
  const Efficiency& efficiency_;
  RunEffects run_;
  std::map<std::pair<LossOptions, bool>, std::size_t> alternations_;  // by loss, and whether there are adapters
  /// Likewise, and by blocks.
  std::map<std::tuple<LossOptions, bool, std::size_t>, std::optional<Graph>> graphs_;
  struct Walk {
    LeastOfWalk least;
    double seconds_of_another = 0;  // micro-batch between the first and the last one
  };
  std::map<std::pair<std::string, std::size_t>, Walk>
      walked_;  // by the flags of a job with few micro-batches, and blocks
};

}  // namespace vramfit
